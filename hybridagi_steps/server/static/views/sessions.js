// Sessions: the list at the left, the conversation in the middle, what belongs to it at the right.

import * as api from "../api.js";
import { ago, amount, exactTime, short } from "../format.js";
import { go, to } from "../navigation.js";
import { html, useCallback, useEffect, useState } from "../preact.js";
import { Busy, Empty, Failure, Tabs, useLoaded } from "../shared.js";
import { follow } from "../stream.js";
import { Branches } from "./branches.js";
import { Composer, Conversation } from "./conversation.js";
import { ContextPreview } from "./context.js";
import { RunPanel } from "./runs.js";

const PAGE = 50;
const CHANGED = "sessions-changed";
export const sessionsChanged = () => dispatchEvent(new Event(CHANGED));

export function SessionList({ chosen }) {
  const [limit, setLimit] = useState(PAGE);
  const [version, setVersion] = useState(0);
  const { value, error, loading } = useLoaded(() => api.sessions({ limit }), [limit, version]);
  useEffect(() => {
    const again = () => setVersion((before) => before + 1);
    addEventListener(CHANGED, again);
    return () => removeEventListener(CHANGED, again);
  }, []);
  const found = value?.sessions || [];
  return html`<div class="list-head"><h2>Sessions</h2>
      <button type="button" class="primary small" onClick=${() => go("sessions", crypto.randomUUID())}>New</button></div>
    <${Failure} error=${error} />
    <ul class="cards">${found.map((session) => html`<li key=${session.session_id}>
      <a href=${to("sessions", session.session_id)} aria-current=${session.session_id === chosen ? "true" : undefined}>
        <span class="card-title">${session.first_message || short(session.session_id, 40)}</span>
        <span class="card-note">
          ${session.forked_from ? html`<span class="mark" title=${`forked from ${session.forked_from}`}>⑂ ${session.forked_at}</span>` : null}
          ${amount(session.messages)} messages<span class="space"></span>
          <time title=${exactTime(session.updated_at)}>${ago(session.updated_at)}</time>
        </span></a></li>`)}</ul>
    ${!found.length && !loading && !error && html`<p class="quiet-text">No session yet.</p>`}
    ${found.length >= limit && html`<button type="button" onClick=${() => setLimit(limit + PAGE)}>More</button>`}`;
}

// The steps of one answer as they stream in, by step id, in order of appearance.
function withEvent(live, event) {
  if (event.type === "step_completed") {
    const said = event.snapshot;
    const others = live.steps.filter((step) => step.id !== event.step_id && !(step.own && said.role === "user"));
    return { ...live, steps: [...others, said], stored: live.stored + 1 };
  }
  if (event.type !== "step_delta") return live;
  if (event.data?.discarded) return { ...live, steps: live.steps.filter((step) => step.id !== event.step_id) };
  const before = live.steps.find((step) => step.id === event.step_id);
  const step = before || { id: event.step_id, role: "assistant", content: "", run_id: event.run_id, live: true };
  const delta = event.delta || {};
  const next = { ...step, content: (step.content || "") + (delta.content || ""),
    reasoning_content: (step.reasoning_content || "") + (delta.reasoning_content || "") };
  return { ...live, steps: [...live.steps.filter((other) => other.id !== step.id), next] };
}

const REASONS = { run_failed: "The run failed", run_cancelled: "The run was cancelled" };

export function SessionView({ id }) {
  const [version, setVersion] = useState(0);
  const [live, setLive] = useState(null);
  const [problem, setProblem] = useState(null);
  const [panel, setPanel] = useState("run");
  const [details, setDetails] = useState(false);
  const { value, error, loading } = useLoaded(
    () => (id ? api.steps(id).catch((e) => (e.status === 404 ? { steps: [] } : Promise.reject(e))) : Promise.resolve({ steps: [] })),
    [id, version],
  );
  const refresh = useCallback(() => { setVersion((v) => v + 1); sessionsChanged(); }, []);

  const start = async (path, body, shown) => {
    setProblem(null);
    setLive({ steps: shown, stored: 0, runId: null, online: true, asks: null, from: body.sequence });
    const take = (event) => {
      if (REASONS[event.type]) {
        setProblem({ title: REASONS[event.type], message: event.data?.message || event.data?.reason || "" });
      }
      setLive((before) => before && {
        ...withEvent(before, event), runId: event.run_id,
        asks: event.type === "tool_auth_required" ? event : event.type === "step_completed" || event.type === "tool_auth_denied" ? null : before.asks,
      });
    };
    try {
      await follow(path, body, take, (online) => setLive((before) => before && { ...before, online }));
    } catch (failure) {
      setProblem(failure);
    }
    setLive(null);
    refresh();
  };

  const send = (message) => start("chat/stream/v2", { session_id: id, message },
    [{ id: "own", role: "user", content: message, own: true }]);
  const retry = (sequence, message) => start(`sessions/${encodeURIComponent(id)}/retry`,
    message == null ? { sequence } : { sequence, message }, []);
  const fork = async (sequence) => {
    try {
      const made = await api.fork(id, sequence);
      sessionsChanged();
      go("sessions", made.new_session_id);
    } catch (failure) {
      setProblem(failure);
    }
  };

  if (!id) return html`<${Empty} title="Choose a session">Or begin a new one; everything the program does is kept as steps.<//>`;
  const stored = value?.steps || [];
  const kept = live?.from == null ? stored : stored.filter((step) => step.sequence <= live.from);
  const all = [...kept, ...(live?.steps || [])];
  const runId = live?.runId || [...stored].reverse().find((step) => step.run_id)?.run_id;
  return html`<div class=${`session ${details ? "with-details" : ""}`}>
    <section class="talk" aria-label="Conversation">
      <header class="bar"><h1>Session</h1><code class="quiet-text" title=${id}>${short(id, 44)}</code><span class="space"></span>
        <button type="button" class="details-button small" aria-expanded=${details} onClick=${() => setDetails(!details)}>Details</button>
        ${live && !live.online && html`<span class="offline" role="status">Connection lost, trying again…</span>`}</header>
      <${Busy} on=${loading && !stored.length} /><${Failure} error=${error} />
      <${Conversation} steps=${all} live=${Boolean(live)} onFork=${fork} onRetry=${retry} />
      ${live?.asks && html`<${Consent} event=${live.asks} />`}
      <${Failure} error=${problem} />
      <${Composer} busy=${Boolean(live)} onSend=${send} onStop=${() => live?.runId && api.cancel(live.runId).catch(setProblem)} />
    </section>
    <aside class="panel" aria-label="Details">
      <${Tabs} label="Details" chosen=${panel} onChoose=${setPanel}
        names=${[["run", "Run"], ["context", "Context"], ["branches", "Branches"]]} />
      ${panel === "run" && html`<${RunPanel} key=${runId} id=${runId} version=${version + (live?.stored || 0)} />`}
      ${panel === "context" && html`<${ContextPreview} id=${id} version=${version} />`}
      ${panel === "branches" && html`<${Branches} id=${id} version=${version} />`}
    </aside></div>`;
}

function Consent({ event }) {
  const call = event.data || {};
  const answer = (allowed) => api.consent(call.nested_run_id || event.run_id, call.call_id, allowed);
  return html`<div class="consent" role="alertdialog" aria-label="The program asks for permission">
    <p>The program wants to use <strong>${call.tool}</strong>.</p><pre>${short(call.arguments, 600)}</pre>
    <button type="button" class="primary" onClick=${() => answer(true)}>Allow</button>
    <button type="button" onClick=${() => answer(false)}>Deny</button></div>`;
}
