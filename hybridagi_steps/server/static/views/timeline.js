// A run as a waterfall: when each step began, and how long it took.

import { duration, stepTitle } from "../format.js";
import { html } from "../preact.js";

const LEAST_PERCENT = 0.6;

// A step is stamped when it ends; its duration reaches back from there. A call without a duration
// of its own lasts as long as its end says.
function spans(steps) {
  const ends = new Map(steps.filter((step) => step.step_type === "ProgramEnd").map((step) => [step.program_id, step]));
  return steps.filter((step) => step.step_type !== "ProgramEnd").map((step) => {
    const own = step.metrics?.duration_ms ?? step.metrics?.tool_exec_time_ms;
    const end = ends.get(step.id);
    const begun = +new Date(step.created_at);
    if (step.step_type === "ProgramCall") {
      const until = end ? +new Date(end.created_at) : begun + (own || 0);
      return { step, from: begun, to: Math.max(begun, until) };
    }
    return { step, from: begun - (own || 0), to: begun };
  });
}

export function Timeline({ steps, chosen, onChoose }) {
  const found = spans(steps);
  if (!found.length) return html`<p class="quiet-text">No steps.</p>`;
  const first = Math.min(...found.map((span) => span.from));
  const last = Math.max(...found.map((span) => span.to));
  const whole = Math.max(1, last - first);
  const place = ({ from, to }) => {
    const width = Math.max(LEAST_PERCENT, ((to - from) / whole) * 100);
    return { left: `${Math.min(100 - width, ((from - first) / whole) * 100)}%`, width: `${width}%` };
  };
  return html`<div class="timeline"><div class="scale" aria-hidden="true"><span>0</span><span>${duration(whole / 2)}</span><span>${duration(whole)}</span></div>
    <ol>${found.map((span) => html`<li key=${span.step.id}>
      <button type="button" class=${span.step.id === chosen ? "chosen" : ""} onClick=${() => onChoose(span.step.id)}
        title=${`${stepTitle(span.step)}: ${duration(span.to - span.from)}`}>
        <span class="timeline-title">${stepTitle(span.step)}</span>
        <span class="track"><span class=${`span kind-${span.step.inputs?.tool ? "tool" : span.step.step_type} ${span.step.status === "error" ? "failed" : ""}`} style=${place(span)}></span></span>
        <span class="timeline-time">${duration(span.to - span.from)}</span></button></li>`)}</ol></div>`;
}
