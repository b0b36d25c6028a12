// All answers a session ever had: nothing is lost by a retry; two of them side by side.

import * as api from "../api.js";
import { ago, amount, duration, exactTime, messageText, text } from "../format.js";
import { html, useEffect, useState } from "../preact.js";
import { Busy, Failure, useLoaded } from "../shared.js";
import { SideBySide } from "./compare.js";

const FACTS = [
  ["messages", (branch) => amount(branch.messages.length)], ["score", (branch) => branch.score],
  ["tokens", (branch) => (branch.tokens == null ? "" : amount(branch.tokens))], ["time", (branch) => duration(branch.duration_ms)],
  ["cost", (branch) => (branch.cost ? `$${branch.cost.toFixed(4)}` : "")],
];
const itemsOf = (branch) => branch.messages.map((step) => ({ name: step.role, title: step.role, text: messageText(step.content) || text(step.tool_calls) }));

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
    ${compared.value && html`<${SideBySide} names=${pair.map((branch) => `Branch ${branch}`)}
      facts=${FACTS.map(([name, of]) => [name, of(compared.value.a), of(compared.value.b)])}
      items=${[compared.value.a, compared.value.b].map(itemsOf)} />`}`;
}
