// Search over all steps: words and meaning, filters, and steps like a given one; the address asks.

import * as api from "../api.js";
import { ago, exactTime, outcome, short, stepTitle, told, unmarked } from "../format.js";
import { ask, link, to } from "../navigation.js";
import { html, useEffect, useRef } from "../preact.js";
import { Busy, Chips, Choice, Failure, Filters, Kind, Status, conditions, useLoaded } from "../shared.js";
import { Values } from "./steps.js";

const TYPES = ["Action", "Decision", "ProgramCall", "ProgramEnd"];
const NARROW_PX = 760;
const MODES = [["hybrid", "meaning and words"], ["dense", "meaning"], ["lexical", "words"]];

function Hit({ hit }) {
  const { step } = hit;
  const percent = Math.round(hit.score * 100);
  return html`<li class="hit"><div class="hit-score" title=${`score ${hit.score.toFixed(3)}`}>
      <meter min="0" max="1" value=${hit.score} aria-label=${`score ${percent} of 100`}></meter><span>${percent}</span></div>
    <article><header><${Kind} step=${step} /><strong>${stepTitle(step)}</strong><${Status} value=${step.status} />
        <span class="space"></span><time title=${exactTime(step.created_at)}>${ago(step.created_at)}</time></header>
      ${hit.why && html`<p class="why">${hit.why}</p>`}
      <pre class="prose">${short(unmarked(outcome(step.outputs)), 420) || "no output"}</pre>
      <details><summary>Whole step</summary><h4>Inputs</h4><${Values} of=${step.inputs} /><h4>Outputs</h4><${Values} of=${told(step.outputs)} /></details>
      <footer><${Chips} metrics=${step.metrics} /><span class="space"></span>
        ${step.run_id && html`<a href=${link(["runs", step.run_id], { step: step.id })}>Run</a>`}
        ${step.session_id && html`<a href=${to("sessions", step.session_id)}>Session</a>`}
        <a href=${link(["search"], { like: step.id })}>More like this</a></footer></article></li>`;
}

export function SearchView({ query }) {
  const field = useRef(null);
  const { shown, sent } = conditions(query);
  const { q, like, mode = "hybrid", step_types } = query;
  useEffect(() => field.current.focus(), []);
  useEffect(() => { field.current.value = q || ""; }, [q]);
  const asked = JSON.stringify({ ...sent, mode, step_types, k: 20, ...(q ? { q } : { like }) });
  const { value, error, loading } = useLoaded(() => (q || like ? api.search(JSON.parse(asked)) : Promise.resolve(null)), [asked]);
  const submit = (event) => {
    event.preventDefault();
    const words = field.current.value.trim();
    ask(words ? { q: words, like: "" } : { q: "" });
  };
  const change = (event) => ask({ [event.target.name]: event.target.value });
  return html`<section class="search" aria-label="Search">
    <form role="search" onSubmit=${submit}>
      <div class="search-line"><label class="hidden" for="query">Search over all steps</label>
        <input id="query" type="search" ref=${field} placeholder="What did a program do before? Ask by meaning or words" />
        <button class="primary">Search</button></div>
      <details class="filter-box" open=${innerWidth > NARROW_PX || Object.keys(shown).length > 0}><summary>Filters</summary>
        <${Filters} values=${shown} onChange=${(changes) => ask(changes)}>
          <${Choice} name="mode" label="By" value=${mode} onChange=${change} options=${MODES} />
          <${Choice} name="step_types" label="Type" value=${step_types} onChange=${change} options=${[["", "any"], ...TYPES.map((t) => [t, t])]} />
        <//></details></form>
    ${like && !q && html`<p class="quiet-text">Steps like <code>${short(like, 40)}</code></p>`}
    <${Busy} on=${loading && (q || like)}>Searching…<//><${Failure} error=${error} />
    ${value && !value.hits.length && !loading && html`<p class="quiet-text">Nothing was found. Fewer filters find more.</p>`}
    <p class="hidden" role="status">${value ? `${value.hits.length} steps found` : ""}</p>
    <ol class="hits">${(value?.hits || []).map((hit) => html`<${Hit} key=${hit.step.id} hit=${hit} />`)}</ol></section>`;
}
