// A run's steps as a tree: each inside the tool or program that made it. Keys as WAI-ARIA's tree pattern has them.

import { amount, duration, outcome, short, stepTitle, tokens, unmarked } from "../format.js";
import { html, useRef, useState } from "../preact.js";
import { Kind, Status } from "../shared.js";

const DEEPEST = 16;

// Rows in order, each with how deep it stands and in which row. A ProgramEnd closes its call and
// needs no row.
export function rowsOf(steps) {
  const known = new Map(steps.map((step) => [step.id, step]));
  const ends = new Map(steps.filter((step) => step.step_type === "ProgramEnd").map((step) => [step.program_id, step]));
  const isEnd = (step) => step.step_type === "ProgramEnd" && known.has(step.program_id);
  const homeOf = (step) => {
    const home = step.metadata?.within ?? step.program_id;
    return home !== step.id && known.has(home) ? home : "";
  };
  const under = new Map();
  for (const step of steps.filter((each) => !isEnd(each))) {
    const home = homeOf(step);
    if (!under.has(home)) under.set(home, []);
    under.get(home).push(step);
  }
  const rows = [];
  const shown = new Set();
  const grow = (home, depth) => {
    const beside = under.get(home) || [];
    beside.forEach((step, place) => {
      if (shown.has(step.id)) return;
      shown.add(step.id);
      rows.push({ step, end: ends.get(step.id), depth, home, place: place + 1, beside: beside.length, inside: depth < DEEPEST && under.has(step.id) });
      if (depth < DEEPEST) grow(step.id, depth + 1);
    });
  };
  grow("", 0);
  for (const step of steps) if (!isEnd(step) && !shown.has(step.id)) rows.push({ step, end: ends.get(step.id), depth: 0, home: "", place: 1, beside: 1, inside: false });
  return { rows, ends };
}

const statusOf = ({ step, end }) => (end && end.status !== "ok" ? end.status : step.status);

function Row({ row, open, chosen, reached, onChoose, onToggle }) {
  const { step, end, depth } = row;
  const metrics = { ...step.metrics, ...end?.metrics };
  const status = statusOf(row);
  const came = outcome((end || step).outputs);
  const toggle = (event) => { event.stopPropagation(); onToggle(step.id); };
  return html`<button type="button" role="treeitem" data-id=${step.id} aria-level=${depth + 1} aria-posinset=${row.place} aria-setsize=${row.beside}
    aria-expanded=${row.inside ? String(open) : undefined} aria-selected=${String(chosen)} tabindex=${reached ? 0 : -1}
    class=${`row ${chosen ? "chosen" : ""} ${status === "error" ? "failed" : ""}`} onClick=${() => onChoose(step.id)} style=${{ paddingLeft: `${4 + depth * 16}px` }}>
    <span class="row-line"><span class=${`fold ${open ? "open" : ""}`} aria-hidden="true" onClick=${row.inside ? toggle : undefined}>${row.inside ? "▸" : ""}</span>
      <${Kind} step=${step} /><span class="row-title">${stepTitle(step)}</span><${Status} value=${status} /><span class="space"></span>
      ${tokens(metrics) != null && html`<span class="quiet-text taken count">${amount(tokens(metrics))} tokens</span>`}
      <span class="quiet-text taken">${duration(metrics.duration_ms ?? metrics.tool_exec_time_ms)}</span></span>
    ${came && html`<span class="row-result">→ ${short(unmarked(came), 160)}</span>`}</button>`;
}

export function Tree({ rows, chosen, onChoose }) {
  const box = useRef(null);
  const [folded, setFolded] = useState(() => new Set());
  const [current, setCurrent] = useState(null);
  const shown = [];
  const hidden = new Set();
  for (const row of rows) {
    if (hidden.has(row.home)) hidden.add(row.step.id);
    else {
      shown.push(row);
      if (folded.has(row.step.id)) hidden.add(row.step.id);
    }
  }
  const reached = [current, chosen].find((id) => shown.some((row) => row.step.id === id)) ?? shown[0]?.step.id;
  const toggle = (id) => setFolded((before) => {
    const after = new Set(before);
    if (!after.delete(id)) after.add(id);
    return after;
  });
  const press = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = shown.findIndex((row) => row.step.id === document.activeElement?.dataset?.id);
    if (at < 0) return;
    const row = shown[at];
    const open = row.inside && !folded.has(row.step.id);
    const to = (next) => {
      setCurrent(next.step.id);
      box.current.querySelector(`[data-id="${CSS.escape(next.step.id)}"]`)?.focus();
    };
    const keys = {
      ArrowDown: () => to(shown[Math.min(shown.length - 1, at + 1)]),
      ArrowUp: () => to(shown[Math.max(0, at - 1)]),
      Home: () => to(shown[0]),
      End: () => to(shown.at(-1)),
      ArrowRight: () => (open ? to(shown[at + 1]) : row.inside && toggle(row.step.id)),
      ArrowLeft: () => (open ? toggle(row.step.id) : to(shown.find((other) => other.step.id === row.home) ?? row)),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  };
  return html`<div class="tree" role="tree" aria-label="Steps" ref=${box} onKeyDown=${press}>${shown.map((row) => html`<${Row} key=${row.step.id}
    row=${row} open=${!folded.has(row.step.id)} chosen=${row.step.id === chosen} reached=${row.step.id === reached} onChoose=${(id) => { setCurrent(id); onChoose(id); }} onToggle=${toggle} />`)}</div>`;
}
