// Calls of the step server: one function per route, errors as the server words them.
// The token comes once in the address (#token=…) and stays in this tab only.

import { queryText } from "./navigation.js";

const TOKEN_KEY = "hybridagi-steps-token";
const TRIES = 3;
export const BUSY = 429;
const REFUSED = 401;

export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail || title);
    this.status = status;
    this.title = title;
  }
}

export function takeToken() {
  const found = /^#token=([^&]+)/.exec(location.hash);
  if (!found) return false;
  setToken(decodeURIComponent(found[1]));
  history.replaceState(null, "", location.pathname + "#/");
  return true;
}

export const setToken = (token) => sessionStorage.setItem(TOKEN_KEY, token.trim());
export const forgetToken = () => sessionStorage.removeItem(TOKEN_KEY);
export const hasToken = () => Boolean(sessionStorage.getItem(TOKEN_KEY));

export function headers(more = {}) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  return token ? { Authorization: `Bearer ${token}`, ...more } : more;
}

export async function problemOf(response) {
  let body = {};
  try {
    body = await response.json();
  } catch (_) {
    // Not JSON: the status says what there is to say.
  }
  const title = response.status === BUSY ? "Please try again in a moment:" : body.title;
  return new Problem(response.status, title || response.statusText, body.detail);
}

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Whose token is refused is asked for one, unless another was given meanwhile.
export async function send(path, options = {}) {
  const sent = headers(options.headers);
  const response = await fetch(path, { ...options, headers: sent });
  if (response.status === REFUSED && sent.Authorization === headers().Authorization) {
    forgetToken();
    dispatchEvent(new Event("refused"));
  }
  return response;
}

// A busy server has done nothing of what it was asked: ask again when it says, not all at once.
async function call(path, options = {}) {
  for (let tries = 1; ; tries += 1) {
    const response = await send(path, options);
    if (response.status === BUSY && tries < TRIES) {
      await pause(1000 * Number(response.headers.get("Retry-After")) * (1 + Math.random()));
      continue;
    }
    if (!response.ok) throw await problemOf(response);
    return response.status === 204 ? null : response.json();
  }
}

const json = (method, body) => ({
  method,
  body: JSON.stringify(body),
  headers: { "Content-Type": "application/json" },
});

export function query(values) {
  const text = queryText(values);
  return text ? `?${text}` : "";
}

const id = encodeURIComponent;

const titled = (steps, titles) => steps.map((step) => ({ ...step, title: titles[step.id] }));

const at = (noun, name) => `${noun}/${id(name)}`;

export const sessions = (page = {}) => call(`sessions${query(page)}`);
export const steps = (session) => call(`${at("sessions", session)}/steps?markdown=true`);
export const context = (session, options = {}) => call(`${at("sessions", session)}/context${query(options)}`);
export const details = (session) => call(at("sessions", session));
export const describe = (session, changed) => call(at("sessions", session), json("PATCH", changed));
export const attempts = (session) => call(`${at("sessions", session)}/attempts`);
export const compare = (session, a, b) =>
  call(`${at("sessions", session)}/compare${query({ branch_a: a, branch_b: b })}`);
export const fork = (session, sequence) => call(`${at("sessions", session)}/fork`, json("POST", { sequence }));
export const erase = (session) => call("purge", json("POST", { where: { session_id: session } }));
export const runs = (asked = {}) => call(`runs${query(asked)}`);
export async function run(runId) {
  const found = await call(at("runs", runId));
  return { ...found, steps: titled(found.steps, found.titles) };
}
export const graphs = (runId) => call(`${at("runs", runId)}/graph`);
export const outlook = (runId) => call(`${at("runs", runId)}/outlook`);
export const map = (asked = {}) => call(`map${query(asked)}`);
export const score = (noun, name, value, feedback) =>
  call(`${at(noun, name)}/score`, json("POST", feedback ? { value, feedback } : { value }));
export const prompt = (stepId) => call(`${at("steps", stepId)}/prompt`);
export const cancel = (runId) => call(`${at("runs", runId)}/cancel`, json("POST", {}));
export async function search(values) {
  const { hits, titles } = await call(`search${query(values)}`);
  return { hits: hits.map((hit) => ({ ...hit, step: titled([hit.step], titles)[0] })) };
}
export const caller = () => call("caller");
export const work = () => call("work");
export const health = () => call("healthz");
