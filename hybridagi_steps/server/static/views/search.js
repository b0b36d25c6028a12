// Search over all steps: words and meaning, filters, and steps like a given one.

import * as api from "../api.js";
import { ago, exactTime, short, stepTitle, text } from "../format.js";
import { to } from "../navigation.js";
import { html, useEffect, useRef, useState } from "../preact.js";
import { Busy, Chips, Failure, Kind, Status } from "../shared.js";

const TYPES = ["Action", "Decision", "ProgramCall", "ProgramEnd"];
const START = { mode: "hybrid", k: "20", step_types: "", status: "", tools: "", session_id: "", run_id: "" };

const Choice = ({ name, label, value, options, onChange }) => html`<label>${label}
  <select name=${name} value=${value} onChange=${onChange}>${options.map(([key, shown]) => html`<option value=${key} selected=${key === value}>${shown}</option>`)}</select></label>`;

function Hit({ hit }) {
  const { step } = hit;
  const percent = Math.round(hit.score * 100);
  return html`<li class="hit"><div class="hit-score" title=${`score ${hit.score.toFixed(3)}`}>
      <meter min="0" max="1" value=${hit.score} aria-label=${`score ${percent} of 100`}></meter><span>${percent}</span></div>
    <article><header><${Kind} step=${step} /><strong>${stepTitle(step)}</strong><${Status} value=${step.status} />
        <span class="space"></span><time title=${exactTime(step.created_at)}>${ago(step.created_at)}</time></header>
      ${hit.why && html`<p class="why">${hit.why}</p>`}
      <pre>${short(step.outputs, 420) || "no output"}</pre>
      <details><summary>Whole step</summary><h4>Inputs</h4><pre>${text(step.inputs)}</pre><h4>Outputs</h4><pre>${text(step.outputs) || "none"}</pre></details>
      <footer><${Chips} metrics=${step.metrics} /><span class="space"></span>
        ${step.run_id && html`<a href=${to("runs", step.run_id)}>Run</a>`}
        ${step.session_id && html`<a href=${to("sessions", step.session_id)}>Session</a>`}
        <a href=${to("search", step.id)}>More like this</a></footer></article></li>`;
}

export function SearchView({ like }) {
  const [words, setWords] = useState("");
  const [filters, setFilters] = useState(START);
  const [state, setState] = useState({ hits: null, busy: false, error: null });
  const field = useRef(null);
  useEffect(() => field.current.focus(), [like]);
  const change = (event) => setFilters({ ...filters, [event.target.name]: event.target.value });
  const find = async (asked) => {
    setState({ hits: null, busy: true, error: null });
    try {
      setState({ hits: (await api.search({ ...filters, ...asked })).hits, busy: false, error: null });
    } catch (error) {
      setState({ hits: null, busy: false, error });
    }
  };
  useEffect(() => { if (like) find({ like }); }, [like]);
  const submit = (event) => {
    event.preventDefault();
    if (words.trim()) find({ q: words });
    else if (like) find({ like });
  };
  return html`<section class="search" aria-label="Search">
    <form role="search" onSubmit=${submit}>
      <div class="search-line"><label class="hidden" for="query">Search over all steps</label>
        <input id="query" type="search" ref=${field} value=${words} onInput=${(event) => setWords(event.target.value)} placeholder="What did a program do before? Ask by meaning or words" />
        <button class="primary">Search</button></div>
      <fieldset class="filters"><legend class="hidden">Filters</legend>
        <${Choice} name="mode" label="By" value=${filters.mode} onChange=${change} options=${[["hybrid", "meaning and words"], ["dense", "meaning"], ["lexical", "words"]]} />
        <${Choice} name="step_types" label="Type" value=${filters.step_types} onChange=${change} options=${[["", "any"], ...TYPES.map((t) => [t, t])]} />
        <${Choice} name="status" label="Status" value=${filters.status} onChange=${change} options=${[["", "any"], ["ok", "ok"], ["error", "error"], ["partial", "partial"], ["cancelled", "cancelled"]]} />
        <label>Tool <input name="tools" value=${filters.tools} onInput=${change} placeholder="any" /></label>
        <label>Session <input name="session_id" value=${filters.session_id} onInput=${change} placeholder="any" /></label>
        <label>Run <input name="run_id" value=${filters.run_id} onInput=${change} placeholder="any" /></label>
      </fieldset></form>
    ${like && html`<p class="quiet-text">Steps like <code>${short(like, 40)}</code></p>`}
    <${Busy} on=${state.busy}>Searching…<//><${Failure} error=${state.error} />
    ${state.hits && !state.hits.length && html`<p class="quiet-text">Nothing was found. Fewer filters find more.</p>`}
    <p class="hidden" role="status">${state.hits ? `${state.hits.length} steps found` : ""}</p>
    <ol class="hits">${(state.hits || []).map((hit) => html`<${Hit} key=${hit.step.id} hit=${hit} />`)}</ol></section>`;
}
