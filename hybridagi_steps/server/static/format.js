// How values read: times, amounts, and any JSON as text. No HTML is ever made from data.

const UNITS = [["year", 31536000], ["month", 2592000], ["day", 86400], ["hour", 3600], ["minute", 60]];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const number = new Intl.NumberFormat("en");

export function ago(text) {
  const seconds = (new Date(text) - Date.now()) / 1000;
  if (Number.isNaN(seconds)) return "";
  for (const [unit, length] of UNITS) {
    if (Math.abs(seconds) >= length) return relative.format(Math.round(seconds / length), unit);
  }
  return "just now";
}

export const exactTime = (text) => (text ? new Date(text).toLocaleString() : "");
export const amount = (value) => number.format(value);

export function duration(ms) {
  if (ms == null) return "";
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 60000 ? `${(ms / 1000).toFixed(1)} s` : `${(ms / 60000).toFixed(1)} min`;
}

export function text(value) {
  if (value == null) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

export function messageText(content) {
  if (!Array.isArray(content)) return text(content);
  return content.map((part) => (part && typeof part.text === "string" ? part.text : text(part))).join("\n");
}

// Also where the page is served without TLS, which has no randomUUID.
export const newId = () => crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

export const short = (value, length = 140) => {
  const line = text(value).replace(/\s+/g, " ").trim();
  return line.length > length ? `${line.slice(0, length - 1)}…` : line;
};

export function chips(metrics) {
  if (!metrics) return [];
  const found = [];
  if (metrics.model_name) found.push(["model", metrics.model_name]);
  if (metrics.input_tokens != null) found.push(["in", amount(metrics.input_tokens)]);
  if (metrics.output_tokens != null) found.push(["out", amount(metrics.output_tokens)]);
  if (metrics.cache_read_tokens) found.push(["cached", amount(metrics.cache_read_tokens)]);
  if (metrics.first_token_latency_ms != null) {
    found.push(["first token", duration(metrics.first_token_latency_ms)]);
  }
  const whole = metrics.steps == null ? metrics.tool_exec_time_ms : null; // of a run, the run itself
  const taken = whole ?? metrics.duration_ms;
  if (taken != null) found.push(["time", duration(taken)]);
  if (metrics.cost) found.push(["cost", `$${metrics.cost.toFixed(4)}`]);
  return found;
}

export function errorOf(outputs) {
  const error = outputs?.error;
  if (!error) return null;
  return typeof error === "object" ? { title: error.type || "Error", message: error.message || "" } : { title: "Error", message: text(error) };
}

const BOOKKEEPING = new Set(["trajectory", "history"]); // in which an agent repeats its steps
export const told = (values) => (values && typeof values === "object" && !Array.isArray(values)
  ? Object.fromEntries(Object.entries(values).filter(([name]) => !BOOKKEEPING.has(name)).reverse()) : values);

// Any value for people to read: JSON, also where it is written in a text, as names and values.
function readable(value) {
  if (value == null) return "";
  if (Array.isArray(value)) return value.map(readable).join(", ");
  if (typeof value === "object") return Object.entries(value).map(([name, held]) => `${name}: ${readable(held)}`).join(" · ");
  if (typeof value !== "string" || !/^\s*[{[]/.test(value)) return String(value);
  try {
    return readable(JSON.parse(value));
  } catch (_) {
    return value; // only looked like JSON
  }
}

// A line of Markdown without its marks.
export const unmarked = (line) => line.replace(/(\*\*|~~|`)(\S(?:.*?\S)?)\1/g, "$2").replace(/^\s*#{1,6}\s+/gm, "");

const UNASKED = new Set(["error", "reasoning", "rationale"]); // outputs that nobody asked a model for

// What came of a step, in one line: its answers, all of them.
export function outcome(outputs) {
  const error = errorOf(outputs);
  if (error) return `${error.title}: ${error.message}`;
  const values = outputs || {};
  const main = ["result", "observation", "choice"].find((key) => key in values);
  if (main) return readable(values[main]);
  const all = Object.entries(told(values)).reverse();
  const answers = all.filter(([name]) => !UNASKED.has(name));
  const shown = answers.length ? answers : all;
  if (shown.length === 1) return readable(shown[0][1]);
  return shown.map(([name, value]) => `${name}: ${short(readable(value), Math.max(20, 150 / shown.length))}`).join(" · ");
}

export const tokens = (metrics) => {
  const counted = [metrics?.input_tokens, metrics?.output_tokens].filter((count) => count != null);
  return metrics?.total_tokens ?? (counted.length ? counted.reduce((a, b) => a + b) : null);
};

export function stepTitle(step) {
  const title = step.title || step.step_type;
  return short(step.step_type === "Decision" ? `${title} → ${text(step.outputs?.choice) || "?"}` : title, 90);
}
