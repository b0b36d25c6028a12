// All answers a session ever had: nothing is lost by a retry; two of them side by side.

import * as api from "../api.js";
import { ago, amount, duration, exactTime, messageText, text } from "../format.js";
import { html, useEffect, useState } from "../preact.js";
import { Busy, Failure, useLoaded } from "../shared.js";

function Side({ name, branch }) {
  const facts = [["messages", amount(branch.messages.length)]];
  if (branch.tokens != null) facts.push(["tokens", amount(branch.tokens)]);
  if (branch.duration_ms != null) facts.push(["time", duration(branch.duration_ms)]);
  if (branch.cost) facts.push(["cost", `$${branch.cost.toFixed(4)}`]);
  if (branch.score != null) facts.push(["score", branch.score]);
  return html`<section class="side" aria-label=${name}><h3>${name}</h3>
    <ul class="chips">${facts.map(([key, value]) => html`<li><span>${key}</span> ${value}</li>`)}</ul>
    ${branch.messages.map((step) => html`<div class=${`message message-${step.role}`}><header><span class="who">${step.role}</span> <span class="sequence">#${step.sequence}</span></header>
      <div class="text">${messageText(step.content) || text(step.tool_calls)}</div></div>`)}</section>`;
}

export function Branches({ id, version }) {
  const { value, error, loading } = useLoaded(
    () => api.attempts(id).catch((e) => (e.status === 404 ? { attempts: [] } : Promise.reject(e))), [id, version]);
  const [pair, setPair] = useState([]);
  const [compared, setCompared] = useState({ value: null, error: null });
  useEffect(() => {
    setCompared({ value: null, error: null });
    if (pair.length < 2) return;
    api.compare(id, ...pair).then((found) => setCompared({ value: found, error: null }), (problem) => setCompared({ value: null, error: problem }));
  }, [pair]);
  const choose = (branch) => setPair(pair.includes(branch) ? pair.filter((other) => other !== branch) : [...pair.slice(-1), branch]);
  const found = value?.attempts || [];
  return html`<${Busy} on=${loading && !value} /><${Failure} error=${error} />
    <p class="quiet-text">${found.length > 1 ? "Choose two to compare." : "A retry or an edited message adds a branch here; nothing is lost."}</p>
    <ul class="attempts">${found.map((attempt) => html`<li><label>
      <input type="checkbox" checked=${pair.includes(attempt.branch_id)} onChange=${() => choose(attempt.branch_id)} />
      <span><strong>${attempt.reason}</strong> after #${attempt.forked_at} · ${amount(attempt.messages)} messages
        ${attempt.current ? html` <span class="mark">current</span>` : null}
        ${" · "}<time class="quiet-text" title=${exactTime(attempt.created_at)}>${ago(attempt.created_at)}</time></span></label></li>`)}</ul>
    <${Failure} error=${compared.error} />
    ${compared.value && html`<div class="compare"><${Side} name=${`Branch ${pair[0]}`} branch=${compared.value.a} /><${Side} name=${`Branch ${pair[1]}`} branch=${compared.value.b} /></div>`}`;
}
