// Small pieces that several views use.

import * as api from "./api.js";
import { html, useEffect, useState } from "./preact.js";
import { chips } from "./format.js";

// Runs `load` whenever one of `inputs` changes; an answer that comes too late is dropped.
export function useLoaded(load, inputs) {
  const [state, setState] = useState({ loading: true, value: null, error: null });
  useEffect(() => {
    let current = true;
    setState((before) => ({ ...before, loading: true, error: null }));
    load().then(
      (value) => current && setState({ loading: false, value, error: null }),
      (error) => current && setState({ loading: false, value: null, error }),
    );
    return () => { current = false; };
  }, inputs);
  return state;
}

// Whether a program is served that can be talked to; asked once.
let served = null;
export function useProgram() {
  served ??= api.health().then((health) => health.program, () => { served = null; return true; });
  return useLoaded(() => served, []).value ?? true;
}

// What the token allows; asked once for each token, nothing until it is known.
const callers = new Map();
export function useCaller() {
  const token = api.headers().Authorization;
  if (!callers.has(token)) callers.set(token, api.caller().catch(() => { callers.delete(token); return null; }));
  const asked = callers.get(token); // a refusal takes it out before it is waited for
  const found = useLoaded(() => asked, [token]).value;
  return {
    may: (scope) => Boolean(found?.scopes.some((each) => each === scope || each === "admin")),
    seesAll: Boolean(found) && found.user_id == null,
  };
}

export const Chips = ({ metrics }) => {
  const found = chips(metrics);
  return found.length
    ? html`<ul class="chips" aria-label="Metrics">
        ${found.map(([name, value]) => html`<li><span>${name}</span> ${value}</li>`)}
      </ul>`
    : null;
};

export const Failure = ({ error }) =>
  error ? html`<p class="failure" role="alert"><strong>${error.title || "Error"}</strong> ${error.message}</p>` : null;

export const Empty = ({ title, children }) =>
  html`<div class="empty"><h2>${title}</h2><p>${children}</p></div>`;

export const Busy = ({ on, children = "Loading…" }) =>
  on ? html`<p class="busy" role="status"><span class="spinner" aria-hidden="true"></span>${children}</p>` : null;

export const Kind = ({ step }) =>
  html`<span class=${`kind kind-${step.inputs?.tool ? "tool" : step.step_type}`}>
    ${step.inputs?.tool ? "Tool" : step.step_type}
  </span>`;

export const Status = ({ value }) =>
  value && !FINE.has(value) ? html`<span class=${`status status-${value}`}>${value}</span>` : null;
const FINE = new Set(["ok", "completed"]);

export function Tabs({ label, names, chosen, onChoose }) {
  const press = (event) => {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!way) return;
    const next = (names.findIndex(([key]) => key === chosen) + way + names.length) % names.length;
    event.preventDefault();
    onChoose(names[next][0]);
    event.currentTarget.children[next].focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${press}>
    ${names.map(([key, name]) => html`<button role="tab" type="button" aria-selected=${String(key === chosen)} tabindex=${key === chosen ? 0 : -1}
      class=${key === chosen ? "chosen" : ""} onClick=${() => onChoose(key)}>${name}</button>`)}
  </div>`;
}

export const Choice = ({ name, label, value = "", options, onChange }) => html`<label>${label}
  <select name=${name} value=${value} onChange=${onChange}>${options.map(([key, shown]) =>
    html`<option value=${key} selected=${key === value}>${shown}</option>`)}</select></label>`;

const STATUSES = [["", "any"], ["ok", "ok"], ["error", "error"], ["partial", "partial"], ["cancelled", "cancelled"], ["paused", "paused"]];
const NAMES = [["tools", "Tool"], ["program", "Program"], ["user_id", "User"], ["session_id", "Session"]];
// What may be several in a field, and what stands between them: commas with blanks, of filters those outside.
const SEVERAL = Object.fromEntries(["tools", "user_id", "run_id", "exclude_run_id", "sources", "predictors", "signatures", "kinds"].map((name) => [name, /,\s+/]));
SEVERAL.exclude = SEVERAL.any_of = /(?<=\}),\s+(?=\{)/;

// Conditions on steps, as searches and the list of runs take them; they live in the address.
export function Filters({ values, onChange, children }) {
  const { seesAll } = useCaller();
  const change = ({ target: { name, value } }) => onChange({ [name]: name in SEVERAL ? value.split(SEVERAL[name]) : value });
  const names = NAMES.filter(([name]) => name !== "user_id" || seesAll); // of one user there is nothing to choose
  return html`<fieldset class="filters"><legend class="hidden">Filters</legend>
    ${children}
    <${Choice} name="status" label="Status" value=${values.status} options=${STATUSES} onChange=${change} />
    ${[...names, ...OTHERS.filter((name) => values[name]).map((name) => [name, name])].map(([name, label]) => html`<label>${label}
      <input name=${name} value=${[values[name] ?? []].flat().join(", ")} onChange=${change} placeholder="any" /></label>`)}
    <label>Score from <input name="min_score" type="number" step="any" value=${values.min_score || ""} onChange=${change} /></label>
    <label>Since <input name="since" type="date" value=${values.since || ""} onChange=${change} /></label>
    <label>Until <input name="until" type="date" value=${values.until || ""} onChange=${change} /></label>
  </fieldset>`;
}

// Conditions of a filter that have no field until the address asks for them, JSON as the server takes it.
const OTHERS = ["run_id", "program_id", "scope", "exclude_run_id", "metadata", "sources", "predictors", "signatures", "trust", "kinds", "exclude", "any_of"];
const CONDITIONS = ["status", ...NAMES.map(([name]) => name), "min_score", "since", "until", ...OTHERS];
const chosenOf = (query) => Object.fromEntries(CONDITIONS.filter((key) => query[key]).map((key) => [key, query[key]]));
const DAY_MS = 86400000;
// A day of this place as the server takes it; any other time, which only an address has, as it is.
function midnight(day, later) {
  const time = +new Date(`${day}T00:00`);
  return Number.isNaN(time) ? day : new Date(time + later).toISOString();
}

// What the address asks for: as the address has it, and as the server takes it.
export function conditions(query) {
  const shown = chosenOf(query);
  const sent = { ...shown };
  if (sent.since) sent.since = midnight(sent.since, 0);
  if (sent.until) sent.until = midnight(sent.until, DAY_MS);
  return { shown, sent };
}

// How good a run or a step was, and why.
export function Rate({ label, score, feedback, comments, onRate }) {
  const [value, setValue] = useState(score ?? "");
  const [words, setWords] = useState(feedback || "");
  const [state, setState] = useState({ error: null, done: false });
  const rate = async (event) => {
    event.preventDefault();
    try {
      await onRate(Number(value), words.trim());
      setState({ error: null, done: true });
    } catch (error) {
      setState({ error, done: false });
    }
  };
  return html`<form class="rate" aria-label=${label} onSubmit=${rate}>
    <label>Score <input type="number" step="any" required value=${value} onInput=${(event) => setValue(event.target.value)} /></label>
    ${[["1", "Good"], ["0", "Bad"]].map(([mark, name]) => html`<button type="button" class="small"
      aria-pressed=${String(value) === mark} onClick=${() => setValue(mark)}>${name}</button>`)}
    ${comments && html`<label class="rate-words">Comment <input value=${words} onInput=${(event) => setWords(event.target.value)} /></label>`}
    <button class="small primary">Rate</button>
    <span role="status" class="quiet-text">${state.done ? "Rated" : ""}</span>
    <${Failure} error=${state.error} /></form>`;
}

export function download(name, lines) {
  const address = URL.createObjectURL(new Blob([`${lines.map((line) => JSON.stringify(line)).join("\n")}\n`], { type: "application/jsonl" }));
  const anchor = Object.assign(document.createElement("a"), { href: address, download: name });
  anchor.click();
  URL.revokeObjectURL(address);
}
