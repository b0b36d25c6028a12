// Runs: the list, and one run as a tree of its calls and as a timeline.

import * as api from "../api.js";
import { ago, amount, duration, exactTime, short, stepTitle, text } from "../format.js";
import { to } from "../navigation.js";
import { html, useMemo, useState } from "../preact.js";
import { Busy, Chips, Empty, Failure, Kind, Status, Tabs, useLoaded } from "../shared.js";
import { Timeline } from "./timeline.js";

const PAGE = 50;

export function RunList({ chosen }) {
  const [limit, setLimit] = useState(PAGE);
  const { value, error, loading } = useLoaded(() => api.runs({ limit }), [limit]);
  const found = value?.runs || [];
  return html`<div class="list-head"><h2>Runs</h2></div><${Failure} error=${error} />
    <ul class="cards">${found.map((run) => html`<li key=${run.run_id}>
      <a href=${to("runs", run.run_id)} aria-current=${run.run_id === chosen ? "true" : undefined}>
        <span class="card-title">${short(run.begins, 80) || short(run.run_id, 40)}</span>
        <span class="card-note">${amount(run.steps)} steps
          ${run.errors ? html`<span class="status status-error">${amount(run.errors)} errors</span>` : null}
          ${run.score != null ? html`<span class="mark">★ ${run.score}</span>` : null}<span class="space"></span>
          <time title=${exactTime(run.started_at)}>${ago(run.started_at)}</time></span></a></li>`)}</ul>
    ${!found.length && !loading && !error && html`<p class="quiet-text">No run yet.</p>`}
    ${found.length >= limit && html`<button type="button" onClick=${() => setLimit(limit + PAGE)}>More</button>`}`;
}

// Steps under the call that encloses them; a ProgramEnd closes its call and needs no line.
function tree(steps) {
  const calls = new Set(steps.filter((step) => step.step_type === "ProgramCall").map((step) => step.id));
  const under = new Map();
  for (const step of steps) {
    const parent = step.step_type === "ProgramEnd" ? null : step.program_id;
    const place = parent && calls.has(parent) && parent !== step.id ? parent : "";
    if (!under.has(place)) under.set(place, []);
    under.get(place).push(step);
  }
  return under;
}

function Branch({ steps, under, ends, depth = 0, chosen, onChoose }) {
  return html`<ul role=${depth ? "group" : "tree"} class="tree">${steps.map((step) => {
    const below = under.get(step.id);
    const end = ends.get(step.id);
    const status = end?.status && end.status !== "ok" ? end.status : step.status;
    return html`<li role="treeitem" key=${step.id} aria-expanded=${below ? "true" : undefined} aria-selected=${step.id === chosen}>
      <button type="button" class=${step.id === chosen ? "chosen" : ""} onClick=${() => onChoose(step.id)}>
        <${Kind} step=${step} /><span class="tree-title">${stepTitle(step)}</span><${Status} value=${status} />
        <span class="space"></span><span class="quiet-text taken">${duration((end?.metrics || step.metrics)?.duration_ms)}</span></button>
      ${below && html`<${Branch} steps=${below} under=${under} ends=${ends} depth=${depth + 1} chosen=${chosen} onChoose=${onChoose} />`}
    </li>`;
  })}</ul>`;
}

export function StepDetails({ step }) {
  if (!step) return null;
  return html`<section class="step-details" aria-label="Step">
    <h3><${Kind} step=${step} /> ${stepTitle(step)} <${Status} value=${step.status} /></h3>
    <p class="quiet-text">hop ${step.hop} · ${exactTime(step.created_at)} · <code>${step.id}</code></p>
    <h4>Inputs</h4><pre>${text(step.inputs)}</pre>
    <h4>Outputs</h4><pre>${text(step.outputs) || "none"}</pre>
    ${step.metadata && Object.keys(step.metadata).length ? html`<details><summary>Metadata</summary><pre>${text(step.metadata)}</pre></details>` : null}
    <${Chips} metrics=${step.metrics} />
    <a href=${to("search", step.id)}>More like this</a></section>`;
}

function RunBody({ value }) {
  const [view, setView] = useState("tree");
  const [chosen, setChosen] = useState(null);
  const { steps } = value;
  const under = useMemo(() => tree(steps), [steps]);
  const ends = useMemo(() => new Map(steps.filter((step) => step.step_type === "ProgramEnd").map((step) => [step.program_id, step])), [steps]);
  const top = (under.get("") || []).filter((step) => step.step_type !== "ProgramEnd" || !steps.some((other) => other.id === step.program_id));
  return html`<${Tabs} label="Run view" chosen=${view} onChoose=${setView} names=${[["tree", "Tree"], ["time", "Timeline"]]} />
    ${value.metrics && html`<${Chips} metrics=${value.metrics} />`}
    ${view === "tree"
      ? html`<${Branch} steps=${top} under=${under} ends=${ends} chosen=${chosen} onChoose=${setChosen} />`
      : html`<${Timeline} steps=${steps} chosen=${chosen} onChoose=${setChosen} />`}
    <${StepDetails} step=${steps.find((step) => step.id === chosen)} />`;
}

export function RunPanel({ id, version }) {
  const { value, error, loading } = useLoaded(
    () => (id ? api.run(id).catch((e) => (e.status === 404 ? null : Promise.reject(e))) : Promise.resolve(null)), [id, version]);
  if (loading && !value) return html`<${Busy} on=${true} />`;
  if (error) return html`<${Failure} error=${error} />`;
  if (!value?.steps.length) return html`<p class="quiet-text">Steps show here once the program has run.</p>`;
  return html`<${RunBody} value=${value} />`;
}

export function RunView({ id }) {
  const { value, error, loading } = useLoaded(() => (id ? api.run(id) : Promise.resolve(null)), [id]);
  if (!id) return html`<${Empty} title="Choose a run">Each run is one question and all the steps it took.<//>`;
  const run = value?.run;
  return html`<section class="run" aria-label="Run">
    <header class="bar"><h1 title=${id}>${short(run?.begins || id, 70)}</h1><span class="space"></span>
      ${run?.session_id && html`<a href=${to("sessions", run.session_id)}>Session</a>`}</header>
    <${Busy} on=${loading && !value} /><${Failure} error=${error} />
    ${run?.feedback && html`<blockquote>${run.feedback}</blockquote>`}
    ${value && html`<${RunBody} value=${value} />`}</section>`;
}
