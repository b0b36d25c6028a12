// A conversation: messages, tool calls with their results, and what can be done from each.

import { amount, exactTime, messageText, short, text } from "../format.js";
import { to } from "../navigation.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../preact.js";
import { Chips } from "../shared.js";

const NAMES = { user: "You", assistant: "Program", tool: "Tool", system: "System" };
const NEAR_END_PX = 40;

function argumentsOf(call) {
  const given = call.function?.arguments;
  try {
    return text(typeof given === "string" ? JSON.parse(given) : given);
  } catch (_) {
    return text(given); // a model wrote no JSON: shown as it is
  }
}

function ToolCall({ call, result, fixed, onRetry }) {
  const failed = result?.metadata?.is_error || result?.metadata?.interrupted;
  const state = !result ? "waiting" : failed ? "failed" : "done";
  return html`<details class=${`call call-${state}`}>
    <summary><span class="dot" aria-hidden="true"></span><code>${call.function?.name || "tool"}</code>
      <span class="call-line">${short(argumentsOf(call), 70)}</span>
      <span class="call-state">${state}</span></summary>
    <h4>Arguments</h4><pre>${argumentsOf(call)}</pre>
    ${result && html`<h4>Result</h4><pre>${messageText(result.content)}</pre><${Chips} metrics=${result.metrics} />`}
    ${result?.sequence > 0 && !fixed && html`<button type="button" class="small" onClick=${() => onRetry(result)}
      aria-label=${`Call again from message ${result.sequence}`}>Call again</button>`}
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

function Message({ step, rendered, results, live, fixed, onFork, onRetry }) {
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
        ${!fixed && step.role === "assistant" && html`<button type="button" onClick=${() => onRetry(step)} aria-label=${`Regenerate message ${step.sequence}`}>Regenerate</button>`}
        ${!fixed && step.role === "user" && html`<button type="button" onClick=${() => onRetry(step)} aria-label=${`Retry message ${step.sequence}`}>Retry</button>
          <button type="button" onClick=${() => setEditing(true)} aria-label=${`Edit message ${step.sequence}`}>Edit</button>`}
      </span>`}</header>
    ${step.reasoning_content && html`<details class="reasoning"><summary>Reasoning</summary><p>${step.reasoning_content}</p></details>`}
    ${editing
      ? html`<${Edit} step=${step} onCancel=${() => setEditing(false)}
          onDone=${(message) => { setEditing(false); onRetry(step, message); }} />`
      : rendered && step.content_for_user == null
        // The server's own Markdown: everything in it that is no Markdown is escaped.
        ? html`<div class="text markdown" dangerouslySetInnerHTML=${{ __html: rendered }}></div>`
        : shown && html`<div class="text">${shown}</div>`}
    ${(step.tool_calls || []).map((call) => html`<${ToolCall} key=${call.id} call=${call} result=${results.get(call.id)} fixed=${fixed} onRetry=${onRetry} />`)}
    <${Chips} metrics=${step.metrics} /></article>`;
}

// What is fixed cannot be run again: a run is in flight, or there is no program.
export function Conversation({ steps, rendered, live, fixed, onFork, onRetry }) {
  const box = useRef(null);
  const following = useRef(true); // until the reader scrolls away from the end
  const placed = useRef(0);
  const scrolled = () => {
    const { scrollHeight, scrollTop, clientHeight } = box.current;
    following.current = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
  };
  useLayoutEffect(() => {
    if (box.current.scrollTop < placed.current - NEAR_END_PX) following.current = false; // before the event
    if (steps.at(-1)?.own) following.current = true;
    if (following.current) box.current.scrollTop = box.current.scrollHeight;
    placed.current = box.current.scrollTop;
  });
  const results = new Map(steps.filter((step) => step.role === "tool").map((step) => [step.tool_call_id, step]));
  const called = new Set(steps.flatMap((step) => (step.tool_calls || []).map((call) => call.id)));
  const shown = steps.filter((step) => step.role !== "tool" || !called.has(step.tool_call_id));
  const waiting = live && !steps.some((step) => step.live);
  return html`<div class="messages" ref=${box} tabindex="0" role="log" aria-label="Messages" aria-busy=${live} onScroll=${scrolled}>
    ${shown.length || waiting ? null : html`<p class="quiet-text centred">Nothing was said yet.</p>`}
    ${shown.map((step) => html`<${Message} key=${step.id} step=${step} rendered=${rendered[step.id]} results=${results} live=${live} fixed=${fixed} onFork=${onFork} onRetry=${onRetry} />`)}
    ${waiting && html`<p class="busy" role="status"><span class="spinner" aria-hidden="true"></span>Working…</p>`}</div>`;
}

const draftKey = (id) => `hybridagi-steps-draft ${id}`;

// What is typed outlives a reload, and a message that the server refuses comes back.
export function Composer({ id, busy, onSend, onStop }) {
  const field = useRef(null);
  const keep = (draft) => (draft ? sessionStorage.setItem(draftKey(id), draft) : sessionStorage.removeItem(draftKey(id)));
  useEffect(() => { field.current.value = sessionStorage.getItem(draftKey(id)) || ""; }, [id]);
  const send = async () => {
    const message = field.current.value.trim();
    if (!message || busy) return;
    field.current.value = "";
    const accepted = await onSend(message);
    const typed = field.current?.value || "";
    const draft = accepted ? typed : [message, typed].filter(Boolean).join("\n");
    keep(draft);
    if (field.current) field.current.value = draft;
  };
  const press = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    <label class="hidden" for="message">Message</label>
    <textarea id="message" ref=${field} rows="2" placeholder="Say something to the program…" onKeyDown=${press} onInput=${(event) => keep(event.target.value)}></textarea>
    ${busy ? html`<button type="button" class="stop" onClick=${onStop}>Stop</button>` : html`<button class="primary">Send</button>`}
  </form>`;
}

export const NoProgram = () => html`<p class="composer no-program" role="note"><span>No program is served here, so there is nobody to talk to.
  Start the server with <code>--program package.module:name</code>; reading, searching and forking work without.</span></p>`;
