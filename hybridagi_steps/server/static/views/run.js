// One run: its steps as a tree or a timeline at the left, the chosen one's details beside it.

import * as api from "../api.js";
import { amount, duration, errorOf, outcome, short, stepTitle, tokens } from "../format.js";
import { ask, to } from "../navigation.js";
import { html, useEffect, useMemo, useState } from "../preact.js";
import { Busy, Chips, Empty, Failure, Kind, Rate, Status, Tabs, useLoaded } from "../shared.js";
import { StepDetails } from "./steps.js";
import { Timeline } from "./timeline.js";

const DEEPEST = 16;
const LOOK_MS = 1500;

// Rows in order, each with how deep it stands: inside the tool or program that made it. A
// ProgramEnd closes its call and needs no row.
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
    for (const step of under.get(home) || []) {
      if (shown.has(step.id)) continue;
      shown.add(step.id);
      rows.push({ step, end: ends.get(step.id), depth });
      if (depth < DEEPEST) grow(step.id, depth + 1);
    }
  };
  grow("", 0);
  for (const step of steps) if (!isEnd(step) && !shown.has(step.id)) rows.push({ step, end: ends.get(step.id), depth: 0 });
  return { rows, ends };
}

const statusOf = ({ step, end }) => (end && end.status !== "ok" ? end.status : step.status);

function Tree({ rows, chosen, onChoose }) {
  const move = (event) => {
    const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!way) return;
    event.preventDefault();
    const items = [...event.currentTarget.querySelectorAll("[role=treeitem]")];
    items[Math.min(items.length - 1, Math.max(0, items.indexOf(document.activeElement) + way))]?.focus();
  };
  const reached = rows.some(({ step }) => step.id === chosen) ? chosen : rows[0]?.step.id;
  return html`<div class="tree" role="tree" aria-label="Steps" onKeyDown=${move}>${rows.map((row) => {
    const { step, end, depth } = row;
    const metrics = { ...step.metrics, ...end?.metrics };
    const status = statusOf(row);
    return html`<button type="button" role="treeitem" key=${step.id} aria-level=${depth + 1} aria-selected=${step.id === chosen}
      tabindex=${step.id === reached ? 0 : -1} class=${`row ${step.id === chosen ? "chosen" : ""} ${status === "error" ? "failed" : ""}`}
      onClick=${() => onChoose(step.id)} style=${{ paddingLeft: `${8 + depth * 16}px` }}>
      <span class="row-line"><${Kind} step=${step} /><span class="row-title">${stepTitle(step)}</span><${Status} value=${status} />
        <span class="space"></span>
        ${tokens(metrics) != null && html`<span class="quiet-text taken count">${amount(tokens(metrics))} tokens</span>`}
        <span class="quiet-text taken">${duration(metrics.duration_ms ?? metrics.tool_exec_time_ms)}</span></span>
      ${outcome((end || step).outputs) && html`<span class="row-result">→ ${short(outcome((end || step).outputs), 160)}</span>`}</button>`;
  })}</div>`;
}

function RunBody({ value, chosen, onChoose, onRated }) {
  const [view, setView] = useState("tree");
  const { steps, run } = value;
  const { rows, ends } = useMemo(() => rowsOf(steps), [steps]);
  const failed = run.status === "failed" && errorOf([...steps].reverse().find((step) => step.outputs?.error)?.outputs);
  const step = steps.find((each) => each.id === chosen);
  return html`<div class="split"><div class="split-left">
      ${failed && html`<${Failure} error=${failed} />`}
      <div class="bar-line"><${Tabs} label="Run view" chosen=${view} onChoose=${setView} names=${[["tree", "Tree"], ["time", "Timeline"]]} />
        <${Chips} metrics=${value.metrics} /></div>
      ${view === "tree" ? html`<${Tree} rows=${rows} chosen=${chosen} onChoose=${onChoose} />`
        : html`<${Timeline} steps=${steps} chosen=${chosen} onChoose=${onChoose} />`}
    </div><div class="split-right">
      ${step ? html`<${StepDetails} key=${step.id} step=${step} end=${ends.get(step.id)} onRated=${onRated} />`
        : html`<p class="quiet-text">Choose a step to see what it was given and what came of it.</p>`}
      <details class="rate-run"><summary>Rate the run</summary>
        ${run.feedback && html`<blockquote>${run.feedback}</blockquote>`}
        <${Rate} key=${`${run.run_id} ${run.score}`} label="Rate the run" score=${run.score} feedback=${run.feedback} comments
          onRate=${async (score, words) => { await api.score("runs", run.run_id, score, words); onRated(); }} /></details>
    </div></div>`;
}

function useRun(id, version) {
  const [again, setAgain] = useState(0);
  const state = useLoaded(
    () => (id ? api.run(id).catch((e) => (e.status === 404 ? null : Promise.reject(e))) : Promise.resolve(null)), [id, version, again]);
  return [state, () => setAgain((before) => before + 1)];
}

// The newest run of a session, beside what was said.
export function RunPanel({ id, version }) {
  const [{ value, error, loading }, reload] = useRun(id, version);
  const [chosen, setChosen] = useState(null);
  if (loading && !value) return html`<${Busy} on=${true} />`;
  if (error) return html`<${Failure} error=${error} />`;
  if (!value?.steps.length) return html`<p class="quiet-text">Steps show here once the program has run.</p>`;
  return html`<${RunBody} value=${value} chosen=${chosen} onChoose=${setChosen} onRated=${reload} />`;
}

export function RunView({ id, query }) {
  const [{ value, error, loading }, reload] = useRun(id, 0);
  const [problem, setProblem] = useState(null);
  const run = value?.run;
  const running = run?.status === "running";
  useEffect(() => {
    const timer = running && setTimeout(reload, LOOK_MS);
    return () => clearTimeout(timer);
  }, [running, value]);
  if (!id) return html`<${Empty} title="Choose a run">Each run is one question and all the steps it took.<//>`;
  if (!loading && !error && !value) return html`<${Empty} title="No such run">It may have been erased.<//>`;
  return html`<section class="run" aria-label="Run">
    <header class="bar"><a class="back" href=${to("runs")}>← Runs</a><h1 title=${id}>${short(run?.begins || id, 90)}</h1><${Status} value=${run?.status} />
      ${run?.score != null && html`<span class="mark">★ ${run.score}</span>`}<span class="space"></span>
      ${value?.live && html`<button type="button" class="small stop" onClick=${() => api.cancel(id).then(reload, setProblem)}>Cancel</button>`}
      ${run?.session_id && html`<a href=${to("sessions", run.session_id)}>Session</a>`}</header>
    <${Busy} on=${loading && !value} /><${Failure} error=${error || problem} />
    ${value && html`<${RunBody} value=${value} chosen=${query.step} onChoose=${(step) => ask({ step })} onRated=${reload} />`}</section>`;
}
