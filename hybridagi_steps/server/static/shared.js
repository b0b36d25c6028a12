// Small pieces that several views use.

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
  value && value !== "ok" ? html`<span class=${`status status-${value}`}>${value}</span>` : null;

export const Tabs = ({ label, names, chosen, onChoose }) =>
  html`<div class="tabs" role="tablist" aria-label=${label}>
    ${names.map(([key, name]) => html`<button role="tab" type="button" aria-selected=${key === chosen}
      class=${key === chosen ? "chosen" : ""} onClick=${() => onChoose(key)}>${name}</button>`)}
  </div>`;
