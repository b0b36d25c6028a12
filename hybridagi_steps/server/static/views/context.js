// What a language model would read next, under a budget, and the receipt of what was left out.

import * as api from "../api.js";
import { amount, messageText, short, text } from "../format.js";
import { html, useState } from "../preact.js";
import { Busy, Failure, useLoaded } from "../shared.js";

const BUDGETS = [500, 2000, 4000, 8000, 32000];

export function ContextPreview({ id, version }) {
  const [budget, setBudget] = useState(4000);
  const { value, error, loading } = useLoaded(() => api.context(id, { budget }), [id, budget, version]);
  const receipt = value?.receipt;
  const used = receipt ? receipt.tokens : 0;
  return html`<label class="budget">Budget
      <select value=${budget} onChange=${(event) => setBudget(Number(event.target.value))}>
        ${BUDGETS.map((size) => html`<option value=${size} selected=${size === budget}>${amount(size)} tokens</option>`)}</select></label>
    <${Busy} on=${loading && !value} /><${Failure} error=${error} />
    ${receipt && html`<div class="gauge"><meter min="0" max=${budget} value=${used} aria-label="Tokens used"></meter>
        <span>${amount(used)} of ${amount(budget)} tokens${receipt.counter_id ? ` (${receipt.counter_id})` : ""}</span></div>
      <h3>Messages</h3>
      <ol class="context">${value.messages.map((message) => html`<li><span class="who">${message.role}</span>
        <span>${short(messageText(message.content) || text(message.tool_calls), 220)}</span></li>`)}</ol>
      <h3>Kept</h3><${Entries} entries=${receipt.kept} />
      <h3>Left out</h3><${Entries} entries=${receipt.dropped} />`}`;
}

const Entries = ({ entries }) => (entries?.length
  ? html`<table class="receipt"><thead><tr><th scope="col">Why</th><th scope="col">Step</th><th scope="col">Tokens</th></tr></thead>
      <tbody>${entries.map((entry) => html`<tr><td>${entry.why}</td><td><code title=${entry.id}>${short(entry.id, 14)}</code></td><td>${amount(entry.tokens)}</td></tr>`)}</tbody></table>`
  : html`<p class="quiet-text">nothing</p>`);
