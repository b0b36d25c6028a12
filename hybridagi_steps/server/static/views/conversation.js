// A conversation: messages, tool calls with their results, and what can be done from each.

import { amount, exactTime, messageText, short, text } from "../format.js";
import { to } from "../navigation.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../preact.js";
import { Chips } from "../shared.js";

const NAMES = { user: "You", assistant: "Program", tool: "Tool", system: "System" };
const NEAR_END_PX = 120;

function argumentsOf(call) {
  const given = call.function?.arguments;
  try {
    return text(typeof given === "string" ? JSON.parse(given) : given);
  } catch (_) {
    return text(given); // a model wrote no JSON: shown as it is
  }
}

function ToolCall({ call, result }) {
  const failed = result?.metadata?.error || result?.metadata?.interrupted;
  const state = !result ? "waiting" : failed ? "failed" : "done";
  return html`<details class=${`call call-${state}`}>
    <summary><span class="dot" aria-hidden="true"></span><code>${call.function?.name || "tool"}</code>
      <span class="call-line">${short(argumentsOf(call), 70)}</span>
      <span class="call-state">${state}</span></summary>
    <h4>Arguments</h4><pre>${argumentsOf(call)}</pre>
    ${result && html`<h4>Result</h4><pre>${messageText(result.content)}</pre><${Chips} metrics=${result.metrics} />`}
  </details>`;
}

function Edit({ step, onDone, onCancel }) {
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  const submit = (event) => { event.preventDefault(); onDone(field.current.value); };
  return html`<form class="edit" onSubmit=${submit}>
    <label class="hidden" for=${`edit-${step.id}`}>Edit the message</label>
    <textarea id=${`edit-${step.id}`} ref=${field} rows="3">${messageText(step.content)}</textarea>
    <button class="primary">Run again with this</button>
    <button type="button" onClick=${onCancel}>Cancel</button></form>`;
}

function Message({ step, results, live, onFork, onRetry }) {
  const [editing, setEditing] = useState(false);
  const mark = step.metadata?.partial ? "partial" : step.metadata?.pending ? "pending" : null;
  const shown = step.content_for_user ?? messageText(step.content);
  const stored = step.sequence > 0;
  return html`<article class=${`message message-${step.role} ${step.live ? "streaming" : ""}`} id=${`m${step.sequence || step.id}`}>
    <header><span class="who">${step.name && step.role !== "user" ? step.name : NAMES[step.role]}</span>
      ${stored && html`<span class="sequence" title=${exactTime(step.created_at)}>#${amount(step.sequence)}</span>`}
      ${mark && html`<span class=${`status status-${mark}`}>${mark}</span>`}<span class="space"></span>
      ${stored && !live && html`<span class="actions">
        ${step.run_id && html`<a href=${to("runs", step.run_id)}>Run</a>`}
        <button type="button" onClick=${() => onFork(step.sequence)} aria-label=${`Fork after message ${step.sequence}`}>Fork</button>
        ${step.role === "user" && html`<button type="button" onClick=${() => onRetry(step.sequence)} aria-label=${`Retry message ${step.sequence}`}>Retry</button>
          <button type="button" onClick=${() => setEditing(true)} aria-label=${`Edit message ${step.sequence}`}>Edit</button>`}
      </span>`}</header>
    ${step.reasoning_content && html`<details class="reasoning"><summary>Reasoning</summary><p>${step.reasoning_content}</p></details>`}
    ${editing
      ? html`<${Edit} step=${step} onCancel=${() => setEditing(false)}
          onDone=${(message) => { setEditing(false); onRetry(step.sequence, message); }} />`
      : shown && html`<div class="text">${shown}</div>`}
    ${(step.tool_calls || []).map((call) => html`<${ToolCall} key=${call.id} call=${call} result=${results.get(call.id)} />`)}
    <${Chips} metrics=${step.metrics} /></article>`;
}

export function Conversation({ steps, live, onFork, onRetry }) {
  const end = useRef(null);
  const box = useRef(null);
  useLayoutEffect(() => {
    const { scrollHeight, scrollTop, clientHeight } = box.current;
    const near = scrollHeight - scrollTop - clientHeight < NEAR_END_PX || steps.at(-1)?.own;
    if (near || !box.current.dataset.shown) end.current.scrollIntoView({ block: "end" });
    if (steps.length) box.current.dataset.shown = "yes";
  });
  const results = new Map(steps.filter((step) => step.role === "tool").map((step) => [step.tool_call_id, step]));
  const called = new Set(steps.flatMap((step) => (step.tool_calls || []).map((call) => call.id)));
  const shown = steps.filter((step) => step.role !== "tool" || !called.has(step.tool_call_id));
  const waiting = live && !steps.some((step) => step.live);
  return html`<div class="messages" ref=${box} tabindex="0" aria-live="polite" aria-busy=${live}>
    ${shown.length ? null : html`<p class="quiet-text centred">Nothing was said yet.</p>`}
    ${shown.map((step) => html`<${Message} key=${step.id} step=${step} results=${results} live=${live} onFork=${onFork} onRetry=${onRetry} />`)}
    ${waiting && html`<p class="busy" role="status"><span class="spinner" aria-hidden="true"></span>Working…</p>`}
    <div ref=${end}></div></div>`;
}

export function Composer({ busy, onSend, onStop }) {
  const field = useRef(null);
  const send = () => {
    const message = field.current.value.trim();
    if (!message || busy) return;
    field.current.value = "";
    onSend(message);
  };
  const press = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    <label class="hidden" for="message">Message</label>
    <textarea id="message" ref=${field} rows="2" placeholder="Say something to the program…" onKeyDown=${press}></textarea>
    ${busy ? html`<button type="button" class="stop" onClick=${onStop}>Stop</button>` : html`<button class="primary">Send</button>`}
  </form>`;
}
