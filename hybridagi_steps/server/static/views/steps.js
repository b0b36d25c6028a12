// One step: what it was given, what came of it, what the model saw, and how good it was.

import * as api from "../api.js";
import { errorOf, exactTime, messageText, stepTitle, text } from "../format.js";
import { link } from "../navigation.js";
import { html, useEffect, useRef, useState } from "../preact.js";
import { Busy, Chips, Failure, Kind, Rate, Status, useLoaded } from "../shared.js";

export function Values({ of }) {
  const entries = of && typeof of === "object" && !Array.isArray(of) ? Object.entries(of) : null;
  if (!entries) return html`<pre>${text(of) || "none"}</pre>`;
  if (!entries.length) return html`<p class="quiet-text">none</p>`;
  return html`<dl class="values">${entries.map(([name, value]) => html`<dt>${name}</dt><dd><pre class=${typeof value === "string" ? "prose" : ""}>${text(value)}</pre></dd>`)}</dl>`;
}

function Prompt({ id }) {
  const { value, error, loading } = useLoaded(() => api.prompt(id), [id]);
  if (loading || error) return html`<${Busy} on=${loading} /><${Failure} error=${error} />`;
  if (!value.calls.length) return html`<p class="quiet-text">No prompt was kept: record with <code>keep_prompts=True</code>.</p>`;
  return value.calls.map((call) => html`<section class="prompt">
    ${call.lm && html`<p class="quiet-text">${call.lm}</p>`}
    ${call.messages.map((message) => html`<h4>${message.role}</h4><pre>${messageText(message.content) || text(message.tool_calls)}</pre>`)}
    ${call.error ? html`<${Failure} error=${{ title: "Failed", message: call.error }} />` : html`<h4>came back</h4><pre>${text(call.completion)}</pre>`}
  </section>`);
}

export function StepDetails({ step, end, onRated, onClose }) {
  const [prompted, setPrompted] = useState(false);
  const top = useRef(null); // below the tree where there is no room beside it
  useEffect(() => top.current.scrollIntoView({ block: "nearest" }), [step.id]);
  const outputs = (end || step).outputs;
  const { purpose, tool, program, arguments: given, ...rest } = step.inputs || {};
  const inputs = given && typeof given === "object" ? { ...given, ...rest } : step.inputs;
  return html`<section class="step-details" aria-label="Step">
    <div class="details-head" ref=${top}><h2><${Kind} step=${step} /> ${stepTitle(step)} <${Status} value=${(end || step).status} /></h2>
      <button type="button" class="small quiet" onClick=${onClose} aria-label="Close the step">✕</button></div>
    <p class="quiet-text">hop ${step.hop} · ${exactTime(step.created_at)} · <code>${step.id}</code></p>
    <${Chips} metrics=${(end || step).metrics || step.metrics} />
    <${Failure} error=${errorOf(outputs)} />
    ${purpose && html`<p class="purpose">${purpose}</p>`}
    <h3>Inputs</h3><${Values} of=${inputs} />
    <h3>Result</h3><${Values} of=${outputs} />
    <details onToggle=${(event) => setPrompted(event.target.open)}><summary>What the model saw</summary>
      ${prompted && html`<${Prompt} id=${step.id} />`}</details>
    ${step.metadata && Object.keys(step.metadata).length ? html`<details><summary>Metadata</summary><pre>${text(step.metadata)}</pre></details>` : null}
    <h3>How good was it?</h3>
    <${Rate} key=${step.id} label="Rate the step" score=${step.score} onRate=${async (value) => { await api.score("steps", step.id, value); onRated(); }} />
    <p><a href=${link(["search"], { like: step.id })}>More like this</a></p></section>`;
}
