// The graphs of a run: graph programs with the way it took, plans with the state of their steps.

import * as api from "../api.js";
import { amount } from "../format.js";
import { html, useEffect, useRef } from "../preact.js";
import { Busy, Failure, useLoaded } from "../shared.js";

const KINDS = { program: "Graph program", plan: "Plan" };

export const hasGraph = (steps) => steps.some((step) => step.metadata?.node || step.metadata?.plan_run);

function Graph({ graph, chosen, onChoose }) {
  const box = useRef(null);
  useEffect(() => {
    for (const node of box.current.querySelectorAll("[data-step]")) node.setAttribute("aria-pressed", String(node.dataset.step === chosen));
  }, [graph.svg, chosen]);
  const choose = (event) => {
    const node = event.target.closest("[data-step]");
    if (!node || (event.key && event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    onChoose(node.dataset.step);
  };
  const states = Object.entries(graph.states).map(([state, count]) => `${amount(count)} ${state}`).join(" · ");
  // The server's own drawing: every text in it is escaped.
  return html`<figure class="graph"><figcaption><strong>${graph.name}</strong> <span class="quiet-text">${KINDS[graph.kind]} · ${states}</span></figcaption>
    <div class="drawing" ref=${box} onClick=${choose} onKeyDown=${choose} dangerouslySetInnerHTML=${{ __html: graph.svg }}></div></figure>`;
}

export function Graphs({ id, version, chosen, onChoose }) {
  const { value, error, loading } = useLoaded(() => api.graphs(id), [id, version]);
  return html`<${Busy} on=${loading && !value} /><${Failure} error=${error} />
    ${(value?.graphs || []).map((graph) => html`<${Graph} key=${graph.name} graph=${graph} chosen=${chosen} onChoose=${onChoose} />`)}
    ${value && !value.graphs.length && html`<p class="quiet-text">This run went through no graph program and no plan.</p>`}`;
}
