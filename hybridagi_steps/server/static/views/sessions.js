// Sessions: the list at the left, the conversation in the middle, what belongs to it at the right.

import * as api from "../api.js";
import { ago, amount, exactTime, messageText, newId, short, text } from "../format.js";
import { address, go, link, to } from "../navigation.js";
import { html, useCallback, useEffect, useRef, useState } from "../preact.js";
import { Busy, Empty, Failure, Tabs, download, useCaller, useLoaded, useProgram } from "../shared.js";
import { follow } from "../stream.js";
import { Branches } from "./branches.js";
import { Composer, Conversation, NoProgram } from "./conversation.js";
import { ContextPreview } from "./context.js";
import { RunPanel } from "./run.js";
import { RunCard, dataset } from "./runs.js";

const PAGE = 50;
const MOST_RUNS = 1000;
const CHANGED = "sessions-changed";
// A session that is begun here is stored with its first message; until then its address says so.
const begin = () => { location.hash = link(["sessions", newId()], { begin: "1" }); };
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
  const hasProgram = useProgram();
  return html`<div class="list-head"><h2>Sessions</h2>
      ${hasProgram && html`<button type="button" class="primary small" onClick=${() => begin()}>New</button>`}</div>
    <${Failure} error=${error} />
    <ul class="cards">${found.map((session) => html`<li key=${session.session_id}>
      <a class="card" href=${to("sessions", session.session_id)} aria-current=${session.session_id === chosen ? "true" : undefined}>
        <span class="card-title">${session.title || session.first_message || short(session.session_id, 40)}</span>
        <span class="card-note">
          ${session.forked_from ? html`<span class="mark" title=${`forked from ${session.forked_from}`}>fork at ${session.forked_at}</span>` : null}
          ${session.runs ? `${amount(session.runs)} ${session.runs === 1 ? "run" : "runs"}` : `${amount(session.messages)} ${session.messages === 1 ? "message" : "messages"}`}<span class="space"></span>
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
const GONE = new Set([403, 404]); // whoever acts for one user is not told which

function problemOf(event) {
  const error = event.data?.error;
  return { title: REASONS[event.type] + (error ? `: ${error.type}` : ""), message: error?.message || "" };
}

async function load(id) {
  if (!id) return { steps: [], runs: [], details: {} };
  const unlessGone = (asked) => asked.catch((error) => (GONE.has(error.status) ? null : Promise.reject(error)));
  const [found, details, { runs }] = await Promise.all([
    unlessGone(api.steps(id)), unlessGone(api.details(id)), api.runs({ session_id: id, limit: PAGE })]);
  return { steps: found?.steps || [], html: found?.html || {}, known: Boolean(found), details: details || {}, runs };
}

// The run in flight that this page reads: begun here, or joined after a reload or in another tab.
function useLive(id, refresh) {
  const [live, setLive] = useState(null);
  const [problem, setProblem] = useState(null);
  const [waiting, setWaiting] = useState(null); // what a paused run waits for
  const reading = useRef(null);
  const known = useRef(null); // the run that was read last: joining it again would tell nothing new
  useEffect(() => () => { reading.current?.abort(); reading.current = known.current = null; setWaiting(null); }, [id]);

  // Resolves once the server has taken it up, to whether it did.
  const read = (asked, shown = [], kept = null) => new Promise((accepted) => {
    const own = new AbortController();
    reading.current = own;
    if (!asked.runId) setProblem(null); // why a message was refused stays
    setLive({ steps: shown, stored: 0, runId: asked.runId || null, online: true, kept });
    const take = (event) => {
      accepted(true);
      known.current = event.run_id;
      if (event.type === "run_started") setWaiting(null);
      if (event.type === "run_paused") setWaiting({ runId: event.run_id, calls: event.data?.waiting || [] });
      if (REASONS[event.type]) setProblem(problemOf(event));
      setLive((before) => before && {
        ...withEvent(before, event), runId: event.run_id,
        kept: event.type === "run_started" ? event.data?.kept ?? before.kept : before.kept,
      });
    };
    follow(asked, take, { signal: own.signal, onLine: (online) => setLive((before) => before && { ...before, online }) })
      .catch((failure) => { if (!own.signal.aborted) setProblem(failure); })
      .finally(() => {
        accepted(false);
        if (own.signal.aborted) return;
        reading.current = null;
        setLive(null);
        refresh();
      });
  });
  const join = (runId) => {
    if (reading.current || known.current === runId) return;
    known.current = runId;
    read({ runId });
  };
  return { live, problem, waiting, setProblem, read, join };
}

function Recorded({ id, runs, onErase }) {
  const [error, setError] = useState(null);
  const all = async () => (await api.runs({ session_id: id, limit: MOST_RUNS })).runs.map((run) => run.run_id);
  const save = () => all().then(dataset).then((lines) => download(`${id}.jsonl`, lines)).catch(setError);
  return html`<section class="run" aria-label="Recorded session"><header class="bar"><a class="back" href=${to("sessions")}>← Sessions</a><h1 title=${id}>${short(id, 60)}</h1><span class="space"></span>
      <button type="button" class="small quiet" onClick=${save}>Export</button>${onErase && html`<button type="button" class="small quiet" onClick=${onErase}>Erase</button>`}</header>
    <${Failure} error=${error} />
    <p class="quiet-text">Recorded without messages: these are its ${amount(runs.length)} ${runs.length === 1 ? "run" : "runs"}.</p>
    <ul class="cards">${runs.map((run) => html`<li key=${run.run_id}><${RunCard} run=${run} /></li>`)}</ul></section>`;
}

// What people call a session, else how it begins; who gives it a title sees that everywhere.
function Title({ id, title, otherwise, known, onChanged }) {
  const [editing, setEditing] = useState(false);
  const [error, setError] = useState(null);
  const field = useRef(null);
  useEffect(() => field.current?.focus(), [editing]);
  const save = async (event) => {
    event.preventDefault();
    try {
      await api.describe(id, { title: field.current.value.trim() });
      setEditing(false);
      setError(null);
      onChanged();
    } catch (problem) {
      setError(problem);
    }
  };
  if (!editing) {
    return html`<h1 title=${id}>${title || otherwise || "New session"}</h1>
      ${known && html`<button type="button" class="small quiet" onClick=${() => setEditing(true)} aria-label="Rename the session">✎</button>`}<span class="space"></span>`;
  }
  return html`<form class="rename" onSubmit=${save} onKeyDown=${(event) => event.key === "Escape" && setEditing(false)}>
    <label class="hidden" for="session-title">Title</label><input id="session-title" ref=${field} maxlength="200" value=${title || ""} placeholder=${otherwise} />
    <button class="small primary">Save</button><button type="button" class="small" onClick=${() => setEditing(false)}>Cancel</button><${Failure} error=${error} /></form>`;
}

const Notes = ({ of }) => (of && Object.keys(of).length
  ? html`<ul class="chips notes" aria-label="Notes">${Object.entries(of).map(([name, value]) => html`<li><span>${name}</span> ${short(value, 80)}</li>`)}</ul>` : null);

const TABS = [["run", "Run"], ["context", "Context"], ["branches", "Branches"]];

export function SessionView({ id }) {
  const [version, setVersion] = useState(0);
  const [panel, setPanel] = useState("run");
  const [details, setDetails] = useState(false);
  const refresh = useCallback(() => { setVersion((v) => v + 1); sessionsChanged(); }, []);
  const hasProgram = useProgram();
  const { live, problem, waiting, setProblem, read, join } = useLive(id, refresh);
  const { value, error, loading } = useLoaded(() => load(id), [id, version]);
  const erasable = useCaller().may("delete");
  const paused = value?.runs[0]?.status === "paused" ? value.runs[0] : null; // unless it has gone on elsewhere
  useEffect(() => {
    const open = value?.runs.find((run) => run.status === "running") || paused;
    if (open) join(open.run_id);
  }, [value]);

  const send = (message) => read({ path: "chat/stream/v2", body: { session_id: id, message } },
    [{ id: "own", role: "user", content: message, own: true }]);
  const retry = ({ sequence, role }, message) => read(
    { path: `sessions/${encodeURIComponent(id)}/retry`, body: message == null ? { sequence } : { sequence, message } },
    [], role === "user" && message == null ? sequence : sequence - 1);
  const resume = (callId, answer) => read({ path: `sessions/${encodeURIComponent(id)}/resume`, body: { answers: { [callId]: answer } } });
  const tried = (work) => work.catch(setProblem);
  const fork = (sequence) => tried(api.fork(id, sequence).then((made) => { sessionsChanged(); go("sessions", made.new_session_id); }));
  const erase = () => confirm("Erase this session for good, with its runs?")
    && tried(api.erase(id).then(() => { sessionsChanged(); go("sessions"); }));

  if (!id) return html`<${Empty} title="Choose a session">Or begin a new one; everything the program does is kept as steps.<//>`;
  const stored = value?.steps || [];
  if (value && !value.known && value.runs.length && !live && value.runs.every((run) => run.status !== "running")) return html`<${Recorded} id=${id} runs=${value.runs} onErase=${erasable && erase} />`;
  if (value && !value.known && !value.runs.length && !live && !problem && !address().query.begin) return html`<${Empty} title="No such session">It may have been erased.<//>`;
  const streamed = new Set((live?.steps || []).map((step) => step.id));
  const kept = stored.filter((step) => !streamed.has(step.id) && (live?.kept == null || step.sequence <= live.kept));
  const runId = live?.runId || [...stored].reverse().find((step) => step.run_id)?.run_id;
  return html`<div class=${`session ${details ? "with-details" : ""}`}>
    <section class="talk" aria-label="Conversation">
      <header class="bar"><a class="back" href=${to("sessions")}>← Sessions</a>
        <${Title} id=${id} title=${value?.details.title} otherwise=${short(messageText(stored.find((step) => step.role === "user")?.content), 90)} known=${value?.known} onChanged=${refresh} />
        ${live && !live.online && html`<span class="offline" role="status">Connection lost, trying again…</span>`}
        ${stored.length > 0 && !live && html`<button type="button" class="small quiet" onClick=${() => download(`${id}.jsonl`, stored)}>Export</button>
          ${erasable && html`<button type="button" class="small quiet" onClick=${erase}>Erase</button>`}`}
        <button type="button" class="details-button small" aria-expanded=${String(details)} onClick=${() => setDetails(!details)}>Details</button></header>
      <${Notes} of=${value?.details.metadata} />
      <${Busy} on=${loading && !stored.length} /><${Failure} error=${error} />
      <${Conversation} steps=${[...kept, ...(live?.steps || [])]} rendered=${value?.html || {}} live=${Boolean(live)} fixed=${Boolean(live) || !hasProgram} onFork=${fork} onRetry=${retry} />
      ${!live && hasProgram && paused && waiting?.runId === paused.run_id && html`<div class="waiting">${waiting.calls.map((call) => html`
        <${Waiting} key=${call.call_id} call=${call} onAnswer=${(answer) => resume(call.call_id, answer)} />`)}</div>`}
      <${Failure} error=${problem} />
      ${hasProgram || live ? html`<${Composer} id=${id} busy=${Boolean(live)} onSend=${send} onStop=${() => live?.runId && tried(api.cancel(live.runId))} />` : html`<${NoProgram} />`}
    </section>
    <aside class="panel" aria-label="Details">
      <${Tabs} label="Details" chosen=${panel} onChoose=${setPanel} names=${TABS} />
      ${panel === "run" && html`<${RunPanel} key=${runId} id=${runId} version=${version + (live?.stored || 0)} />`}
      ${panel === "context" && html`<${ContextPreview} id=${id} version=${version} />`}
      ${panel === "branches" && html`<${Branches} id=${id} version=${version} />`}
    </aside></div>`;
}

// What a paused run waits for: whether a tool may run, or what its user says.
function Waiting({ call, onAnswer }) {
  const field = useRef(null);
  if (call.waits_for === "answer") {
    return html`<form class="consent" aria-label="The program asks" onSubmit=${(event) => { event.preventDefault(); onAnswer(field.current.value); }}>
      <label for=${call.call_id}>${call.arguments?.question}</label><input id=${call.call_id} ref=${field} />
      <button class="primary">Answer</button></form>`;
  }
  return html`<div class="consent" role="alertdialog" aria-label="The program asks for permission">
    <p>The program wants to use <strong>${call.tool}</strong>.</p><pre>${text(call.arguments)}</pre>
    <button type="button" class="primary" onClick=${() => onAnswer(true)}>Allow</button>
    <button type="button" onClick=${() => onAnswer(false)}>Deny</button></div>`;
}
