// Who works on the memory, and on what: living servers and workers, queues, runs in flight.

import * as api from "../api.js";
import { short } from "../format.js";
import { to } from "../navigation.js";
import { html, useEffect, useState } from "../preact.js";
import { Busy, Failure, useLoaded } from "../shared.js";

const LOOK_MS = 2000;

const Rows = ({ title, heads, rows, none }) => html`<section aria-label=${title}><h2>${title}</h2>
  ${rows.length ? html`<table class="work"><thead><tr>${heads.map((head) => html`<th scope="col">${head}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody></table>`
    : html`<p class="quiet-text">${none}</p>`}</section>`;

const seconds = (value) => (value == null ? "" : `${value.toFixed(1)} s`);
const living = (found) => found.map((one) => [html`<code>${one.name}</code>`, one.host, one.process, seconds(one.seen_seconds)]);
const PROCESS = ["Name", "Host", "Process", "Last sign"];

export function WorkView() {
  const [look, setLook] = useState(0);
  const { value, error } = useLoaded(api.work, [look]);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || setLook((before) => before + 1), LOOK_MS);
    return () => clearInterval(timer);
  }, []);
  if (error) return html`<${Failure} error=${error} />`;
  if (!value) return html`<${Busy} on=${true} />`;
  return html`<div class="work-view">
    <${Rows} title="Servers" heads=${PROCESS} rows=${living(value.servers)} none="None." />
    <${Rows} title="Workers" heads=${PROCESS} rows=${living(value.workers)} none="None: what is queued waits." />
    <${Rows} title="Queues" heads=${["Queue", "Queued", "Running", "Given up", "Oldest waits"]} none="Nothing was queued."
      rows=${value.queues.map((one) => [html`<code>${one.name}</code>`, one.queued, one.running, one.failed, seconds(one.oldest_wait_seconds)])} />
    <${Rows} title="Runs in flight" heads=${["Run", "Session", "User", "Server"]} none="None."
      rows=${value.runs.map((one) => [html`<a href=${to("runs", one.run_id)}>${short(one.run_id, 12)}</a>`,
        one.session_id && html`<a href=${to("sessions", one.session_id)}>${short(one.session_id, 24)}</a>`, one.user_id || "", html`<code>${one.server}</code>`])} />
  </div>`;
}
