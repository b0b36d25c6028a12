// Server-sent events over fetch: a POST starts a run; when the line breaks, the run's own event
// stream is read on from the last event seen, so nothing is lost and nothing comes twice.

import { BUSY, pause, problemOf, send } from "./api.js";

const FINAL = new Set(["run_completed", "run_failed", "run_cancelled", "run_paused"]);
const LONGEST_PAUSE_MS = 8000;
const STREAM = "text/event-stream";

export function parseEvents(buffer) {
  const blocks = buffer.split("\n\n");
  const rest = blocks.pop();
  const events = [];
  for (const block of blocks) {
    const event = { id: null, data: [] };
    for (const line of block.split("\n")) {
      if (line.startsWith("id:")) event.id = line.slice(3).trim();
      else if (line.startsWith("data:")) event.data.push(line.slice(5).replace(/^ /, ""));
    }
    if (event.data.length) events.push({ id: event.id, ...JSON.parse(event.data.join("\n")) });
  }
  return [events, rest];
}

async function readAll(response, onEvent) {
  if (!response.ok) throw await problemOf(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const [events, rest] = parseEvents(buffer + value.replace(/\r\n?/g, "\n"));
    buffer = rest;
    events.forEach(onEvent);
  }
}

const again = (state, signal) =>
  send(`runs/${encodeURIComponent(state.runId)}/events`, {
    signal,
    headers: state.lastId ? { Accept: STREAM, "Last-Event-ID": state.lastId } : { Accept: STREAM },
  });

const begin = ({ path, body }, signal) =>
  send(path, {
    signal,
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: STREAM },
    body: JSON.stringify(body),
  });

// Reads a run to its end: one that a POST to `path` begins, or with `runId` one in flight.
export async function follow(asked, onEvent, { onLine = () => {}, signal } = {}) {
  const state = { runId: asked.runId || null, lastId: null, ended: false };
  const take = (event) => {
    state.runId = event.run_id || state.runId;
    state.lastId = event.id || state.lastId;
    state.ended = state.ended || FINAL.has(event.type);
    onEvent(event);
  };
  for (let tries = 0; !state.ended; tries += 1) {
    try {
      await readAll(await (state.runId ? again(state, signal) : begin(asked, signal)), (event) => {
        tries = 0;
        onLine(true);
        take(event);
      });
    } catch (error) {
      // The server refused, or nothing ever began; a run that began goes on while it is busy.
      const refused = error.status && error.status !== BUSY;
      if (signal?.aborted || !state.runId || refused) throw error;
    }
    if (state.ended) break;
    if (!state.runId) throw new Error("The server began no run: there was nothing left to do, or it is ending.");
    onLine(false);
    await pause(Math.min(LONGEST_PAUSE_MS, 250 * 2 ** tries));
  }
}
