// Two lines of what happened side by side, with what differs marked: runs, or branches of a session.

import * as api from "../api.js";
import { amount, duration, outcome, short, stepTitle, tokens } from "../format.js";
import { aligned, markedWords } from "../diff.js";
import { link, to } from "../navigation.js";
import { html } from "../preact.js";
import { Busy, Failure, useLoaded } from "../shared.js";
import { rowsOf } from "./tree.js";

const LONGEST = 600;

const Marked = ({ text, other }) => (other == null || text === other ? text
  : markedWords(text, other).map(([word, lacking]) => (lacking ? html`<mark>${word}</mark>` : word)));

function Cell({ item, other }) {
  if (!item) return html`<td class="absent">–</td>`;
  const same = other && other.text === item.text && other.title === item.title;
  return html`<td class=${same ? "" : "differs"}><strong><${Marked} text=${item.title} other=${other?.title} /></strong>
    <div class="text"><${Marked} text=${item.text} other=${other?.text} /></div></td>`;
}

// Items are {name, title, text}, and stand side by side where their names agree; facts are [name, left, right].
export function SideBySide({ names, facts, items }) {
  return html`<div class="scroll-box"><table class="compared"><thead><tr><th scope="col"><span class="hidden">What</span></th>${names.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${facts.map(([name, a, b]) => html`<tr><th scope="row">${name}</th>${[a, b].map((value) => html`<td class=${a === b ? "" : "differs"}>${value == null || value === "" ? "–" : value}</td>`)}</tr>`)}
    ${aligned(items[0], items[1], (item) => item.name).map(([a, b], at) => html`<tr><th scope="row">${at + 1}</th><${Cell} item=${a} other=${b} /><${Cell} item=${b} other=${a} /></tr>`)}
    </tbody></table></div>`;
}

const FACTS = [
  ["status", ({ run }) => run.status], ["score", ({ run }) => run.score], ["steps", ({ run }) => amount(run.steps)],
  ["errors", ({ run }) => amount(run.errors)], ["time", ({ metrics }) => duration(metrics.duration_ms)],
  ["tokens", ({ metrics }) => (tokens(metrics) == null ? "" : amount(tokens(metrics)))],
  ["cost", ({ metrics }) => (metrics.cost ? `$${metrics.cost.toFixed(4)}` : "")],
];

const nameOf = (step) => `${step.step_type} ${step.inputs?.tool || step.inputs?.program || step.predictor || ""}`;
const itemsOf = ({ steps }) => rowsOf(steps).rows.map(({ step, end }) => ({ name: nameOf(step), title: stepTitle(step), text: short(outcome((end || step).outputs), LONGEST) }));

export function CompareView({ ids }) {
  const { value, error, loading } = useLoaded(() => Promise.all(ids.map(api.run)), [ids.join("/")]);
  return html`<section class="run" aria-label="Compare"><header class="bar"><a href=${to("runs")}>← Runs</a><h1>Two runs side by side</h1></header>
    <${Busy} on=${loading && !value} /><${Failure} error=${error} />
    ${value && html`<${SideBySide} names=${value.map(({ run }) => html`<a href=${link(["runs", run.run_id])}>${short(run.begins, 80)}</a>`)}
      facts=${FACTS.map(([name, of]) => [name, of(value[0]), of(value[1])])} items=${value.map(itemsOf)} />`}</section>`;
}
