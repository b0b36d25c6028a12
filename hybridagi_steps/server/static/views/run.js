// One run: its steps as a tree, a timeline or a graph at the left; beside them the chosen one, else an overview.

import * as api from "../api.js";
import { errorOf, short, told } from "../format.js";
import { ask, to } from "../navigation.js";
import { html, useEffect, useMemo, useState } from "../preact.js";
import { Busy, Chips, Empty, Failure, Rate, Status, Tabs, useLoaded } from "../shared.js";
import { Graphs, hasGraph } from "./graphs.js";
import { Outlook } from "./outlook.js";
import { StepDetails, Values } from "./steps.js";
import { Timeline } from "./timeline.js";
import { Tree, rowsOf } from "./tree.js";

const LOOK_MS = 1500;
const NO_RESULT = { running: "Still running.", paused: "It paused for an answer; its session goes on from there." };

// What was asked, what came of it, and what can be seen of how it went.
function Overview({ value, ends, onChoose }) {
  const { steps, run } = value;
  const call = steps.find((step) => step.step_type === "ProgramCall") || steps[0];
  const given = call?.inputs?.arguments ?? call?.inputs;
  const came = (ends.get(call?.id) || (steps.length === 1 ? call : null))?.outputs;
  return html`<section class="step-details" aria-label="Overview"><h2>Overview</h2>
    <h3>Asked</h3><${Values} of=${given} />
    ${!errorOf(came) && html`<h3>Result</h3>${came && run.status !== "paused" ? html`<${Values} of=${told(came)} />` : html`<p class="quiet-text">${NO_RESULT[run.status] || "It has no end."}</p>`}`}
    ${run.status !== "running" && html`<${Outlook} id=${run.run_id} version=${run.score} onChoose=${onChoose} />`}</section>`;
}

function RunBody({ value, chosen, onChoose, picked, onView, onRated, panel = false }) {
  const { steps, run } = value;
  const { rows, ends } = useMemo(() => rowsOf(steps), [steps]);
  const failed = run.status === "failed" && errorOf([...steps].reverse().find((step) => step.outputs?.error)?.outputs);
  const step = steps.find((each) => each.id === chosen);
  const views = [["tree", "Tree"], ["time", "Timeline"], ...(hasGraph(steps) ? [["graph", "Graph"]] : [])];
  const view = views.some(([name]) => name === picked) ? picked : "tree";
  return html`<div class="split"><div class="split-left">
      ${failed && html`<${Failure} error=${failed} />`}
      <div class="bar-line"><${Tabs} label="Run view" chosen=${view} onChoose=${onView} names=${views} />
        <${Chips} metrics=${value.metrics} /></div>
      ${view === "tree" && html`<${Tree} rows=${rows} chosen=${chosen} onChoose=${onChoose} />`}
      ${view === "time" && html`<${Timeline} steps=${steps} chosen=${chosen} onChoose=${onChoose} />`}
      ${view === "graph" && html`<${Graphs} id=${run.run_id} version=${`${steps.length} ${run.status}`} chosen=${chosen} onChoose=${onChoose} />`}
    </div><div class="split-right">
      ${step ? html`<${StepDetails} key=${step.id} step=${step} end=${ends.get(step.id)} onRated=${onRated} onClose=${() => onChoose("")} />`
        : panel ? html`<p class="quiet-text">Choose a step to see what it was given and what came of it, or <a href=${to("runs", run.run_id)}>open the run</a> for its outlook.</p>`
          : html`<${Overview} value=${value} ends=${ends} onChoose=${onChoose} />`}
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
  const [view, setView] = useState(null);
  if (loading && !value) return html`<${Busy} on=${true} />`;
  if (error) return html`<${Failure} error=${error} />`;
  if (!value?.steps.length) return html`<p class="quiet-text">Steps show here once the program has run.</p>`;
  return html`<${RunBody} value=${value} chosen=${chosen} onChoose=${setChosen} picked=${view} onView=${setView} onRated=${reload} panel />`;
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
    ${value && html`<${RunBody} value=${value} chosen=${query.step} onChoose=${(step) => ask({ step })} picked=${query.view} onView=${(view) => ask({ view }, { replace: true })} onRated=${reload} />`}</section>`;
}
