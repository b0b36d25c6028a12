// The list of runs, filtered as the address says; those that are picked can be compared or exported.

import * as api from "../api.js";
import { ago, amount, exactTime, short } from "../format.js";
import { ask, link } from "../navigation.js";
import { html, useEffect, useState } from "../preact.js";
import { Failure, Filters, Status, conditions, download, useLoaded } from "../shared.js";

const PAGE = 50;
const LOOK_MS = 2000;

const picked = (query) => [query.pick || []].flat().flatMap((names) => names.split(" "));

// One line a run: what was asked, what was answered, and what was said of it.
export async function dataset(ids) {
  const runs = [];
  for (const id of ids) runs.push(await api.run(id)); // one after the other: the server answers few at once
  return runs.map(({ run, steps }) => {
    const call = steps.find((step) => step.step_type === "ProgramCall") || steps[0];
    const end = steps.find((step) => step.step_type === "ProgramEnd" && step.program_id === call?.id) || steps.at(-1);
    return { run_id: run.run_id, program: call?.inputs?.program, inputs: call?.inputs?.arguments, outputs: end?.outputs,
      status: run.status, score: run.score, feedback: run.feedback };
  });
}

function Picked({ ids }) {
  const [error, setError] = useState(null);
  const save = () => dataset(ids).then((lines) => download("dataset.jsonl", lines)).catch(setError);
  return html`<div class="picked" role="group" aria-label="Picked runs"><span>${ids.length} picked</span>
    ${ids.length === 2 && html`<a class="button small" href=${link(["compare", ...ids])}>Compare</a>`}
    <button type="button" class="small" onClick=${save}>Dataset</button>
    <button type="button" class="small quiet" onClick=${() => ask({ pick: "" }, { replace: true })}>Clear</button>
    <${Failure} error=${error} /></div>`;
}

export function RunCard({ run, chosen, query = {} }) {
  const { step: _, view: __, ...kept } = query;
  return html`<a class="card" href=${link(["runs", run.run_id], kept)} aria-current=${run.run_id === chosen ? "true" : undefined}>
    <span class="card-title">${short(run.begins, 120) || short(run.run_id, 40)}</span>
    <span class="card-note"><${Status} value=${run.status} /><span>${amount(run.steps)} ${run.steps === 1 ? "step" : "steps"}</span>
      ${run.errors && run.status !== "failed" ? html`<span class="status">${amount(run.errors)} ${run.errors === 1 ? "error" : "errors"}</span>` : null}
      ${run.score != null ? html`<span class="mark">★ ${run.score}</span>` : null}<span class="space"></span>
      <time title=${exactTime(run.started_at)}>${ago(run.started_at)}</time></span></a>`;
}

export function RunList({ chosen, query }) {
  const [limit, setLimit] = useState(PAGE);
  const [version, setVersion] = useState(0);
  const { shown, sent } = conditions(query);
  const asked = JSON.stringify(sent);
  const { value, error, loading } = useLoaded(() => api.runs({ ...sent, limit }), [limit, asked, version]);
  const found = value?.runs || [];
  const running = found.some((run) => run.status === "running");
  useEffect(() => {
    const timer = running && setTimeout(() => setVersion(version + 1), LOOK_MS);
    return () => clearTimeout(timer);
  }, [running, value]);
  const ids = picked(query);
  const pick = (id) => ask({ pick: (ids.includes(id) ? ids.filter((other) => other !== id) : [...ids, id]).join(" ") }, { replace: true });
  const active = Object.keys(shown).length;
  return html`<div class="list-head"><h2>Runs</h2></div>
    <details class="filter-box" open=${active > 0}><summary>Filters${active ? ` (${active})` : ""}</summary>
      <${Filters} values=${shown} onChange=${(changes) => ask(changes)} /></details>
    ${ids.length > 0 && html`<${Picked} ids=${ids} />`}
    <${Failure} error=${error} />
    <ul class="cards">${found.map((run) => html`<li key=${run.run_id} class="pickable">
      <input type="checkbox" aria-label=${`Pick ${short(run.begins || run.run_id, 60)}`} checked=${ids.includes(run.run_id)} onChange=${() => pick(run.run_id)} />
      <${RunCard} run=${run} chosen=${chosen} query=${query} /></li>`)}</ul>
    ${!found.length && !loading && !error && html`<p class="quiet-text">${active ? "No run matches." : "No run yet."}</p>`}
    ${value?.next_offset && html`<button type="button" onClick=${() => setLimit(limit + PAGE)}>More</button>`}`;
}
