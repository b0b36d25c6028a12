// How the like of a run ended before, and where it first went wrong: without a model, from scores and statuses.

import * as api from "../api.js";
import { amount, short } from "../format.js";
import { html } from "../preact.js";
import { Busy, Failure, useLoaded } from "../shared.js";

const MOST_SHARES = 5;
const percent = (share) => `${Math.round(share * 100)} %`;

const To = ({ step, hop, onChoose, children }) => html`<button type="button" class="to-step" onClick=${() => onChoose(step)}><span class="sequence">#${amount(hop)}</span> ${children}</button>`;

function Found({ value, onChoose }) {
  const { chance, agreement, lowest, first_trouble: trouble, loops } = value;
  const shares = Object.entries(agreement).sort((a, b) => b[1] - a[1]).slice(0, MOST_SHARES);
  return html`<h3>First trouble</h3>
    ${trouble ? html`<${To} step=${trouble.step_id} hop=${trouble.hop} onChoose=${onChoose}><span class="said">${short(trouble.said, 200)}</span><//>` : html`<p class="quiet-text">No step failed or said so.</p>`}
    ${loops.length > 0 && html`<h3>Loops</h3><ul class="loops">${loops.map((loop) => html`<li>${loop}</li>`)}</ul>`}
    <h3>Outlook</h3>
    ${chance == null ? html`<p class="quiet-text">Too few runs like this one are scored to tell how it was likely to end.</p>`
      : html`<div class="gauge"><meter min="0" max="1" value=${chance} aria-label=${`Outlook ${percent(chance)}`}></meter><span><strong>${percent(chance)}</strong> of what is most like its steps ended well</span></div>`}
    ${lowest.length > 0 && html`<h4>Steps with the lowest outlook</h4><ul class="lowest">${lowest.map((step) => html`<li><${To} step=${step.step_id} hop=${step.hop} onChoose=${onChoose}>
        <span class="said">${short(step.action, 90)}</span><span class="quiet-text taken">${step.chance == null ? "" : percent(step.chance)}${step.scored ? ` · ${amount(step.well)} of ${amount(step.scored)}` : ""}</span><//></li>`)}</ul>`}
    ${shares.length > 0 && html`<h4>Done in states like its last one</h4><ul class="shares">${shares.map(([action, share]) => html`<li><span class="said">${short(action, 60)}</span>
        <meter min="0" max="1" value=${share} aria-hidden="true"></meter><span class="quiet-text taken">${percent(share)}</span></li>`)}</ul>`}`;
}

export function Outlook({ id, version, onChoose }) {
  const { value, error, loading } = useLoaded(() => api.outlook(id), [id, version]);
  return html`<section class="outlook" aria-label="Outlook"><${Busy} on=${loading && !value}>Looking at runs like it…<//><${Failure} error=${error} />
    ${value && html`<${Found} value=${value} onChoose=${onChoose} />`}</section>`;
}
