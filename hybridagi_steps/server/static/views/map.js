// A map of what is remembered: steps where their embeddings put them; like ones lie together.

import * as api from "../api.js";
import { amount, short } from "../format.js";
import { ask, link } from "../navigation.js";
import { html, useMemo, useState } from "../preact.js";
import { Busy, Choice, Failure, Filters, Kind, Status, conditions, useLoaded } from "../shared.js";

const NARROW_PX = 760;
const [WIDTH, HEIGHT, EDGE] = innerWidth > NARROW_PX ? [1000, 600, 16] : [440, 440, 14];
const BY = [["tool", "tool"], ["status", "status"], ["step_type", "type"]];
const COLOURS = 6;
const GREY = 6; // what has no name, or one too many
const OF_STATUS = { ok: 2, partial: 1, cancelled: 6, paused: 6, error: 5 };
const DOT = "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0";
const SHAPES = ["M-6 0a6 6 0 1 0 12 0a6 6 0 1 0 -12 0", "M-5.5-5.5h11v11h-11z", "M0-7l7 12h-14z", "M0-7.5L7.5 0L0 7.5L-7.5 0z"];
const WAYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const shapeOf = (colour) => (colour === GREY ? DOT : SHAPES[colour % SHAPES.length]);
const addressOf = (point) => (point.run_id ? link(["runs", point.run_id], { step: point.id }) : link(["search"], { like: point.id }));
const groupOf = (point, by) => point[by] || `no ${by}`;
const Sign = ({ colour }) => html`<svg class="sign" viewBox="-9 -9 18 18" aria-hidden="true"><path d=${shapeOf(colour)} class=${`c${colour}`} /></svg>`;

// Groups by size: a colour and a shape each, as far as there are any.
function groupsOf(points, by) {
  const sizes = new Map();
  for (const point of points) sizes.set(groupOf(point, by), (sizes.get(groupOf(point, by)) || 0) + 1);
  const none = groupOf({}, by);
  const sorted = [...sizes].sort((a, b) => (a[0] === none) - (b[0] === none) || b[1] - a[1]);
  const colourOf = (name, place) => (by === "status" ? OF_STATUS[name] ?? GREY : name === none || place >= COLOURS ? GREY : place);
  return new Map(sorted.map(([name, size], place) => [name, { name, size, colour: colourOf(name, place) }]));
}

// The point that lies nearest in a direction, those straight ahead before those aside.
function neighbour(points, from, [right, down]) {
  let [best, least] = [from, Infinity];
  points.forEach((point, at) => {
    const [ahead, aside] = right ? [(point.px - points[from].px) * right, point.py - points[from].py] : [(point.py - points[from].py) * down, point.px - points[from].px];
    const far = ahead + 2 * Math.abs(aside);
    if (ahead > 0 && far < least) [best, least] = [at, far];
  });
  return best;
}

function Plane({ points, groups, by, at, onAt }) {
  const drawn = useMemo(() => points.map((point, place) => {
    const { colour } = groups.get(groupOf(point, by));
    return html`<path key=${point.id} data-at=${place} class=${`point c${colour}`} d=${shapeOf(colour)} transform=${`translate(${point.px} ${point.py})`} />`;
  }), [points, groups]);
  const here = points[Math.min(at, points.length - 1)];
  const over = (event) => event.target.dataset?.at && onAt(Number(event.target.dataset.at));
  const press = (event) => {
    if (event.key === "Enter") location.hash = addressOf(here);
    if (!WAYS[event.key]) return;
    event.preventDefault();
    onAt(neighbour(points, points.indexOf(here), WAYS[event.key]));
  };
  return html`<svg class="plane" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} tabindex="0" role="application" aria-roledescription="map" aria-describedby="map-here"
    aria-label=${`Map of ${amount(points.length)} steps. Arrow keys go from step to step, Enter opens one.`}
    onMouseOver=${over} onKeyDown=${press} onClick=${(event) => { if (event.target.dataset?.at) location.hash = addressOf(points[event.target.dataset.at]); }}>
    ${drawn}<circle class="here" r="12" cx=${here.px} cy=${here.py} /></svg>`;
}

function Here({ point, group, more }) {
  return html`<p id="map-here" class="here-line" role="status"><${Sign} colour=${group.colour} /><${Kind} step=${{ ...point, inputs: point }} />
    <a href=${addressOf(point)}>${short(point.title, 160) || point.id}</a> <${Status} value=${point.status} />
    ${more > 0 && html`<span class="quiet-text">and ${amount(more)} more in the same place</span>`}<span class="space"></span><a href=${link(["search"], { like: point.id })}>More like this</a></p>`;
}

export function MapView({ query }) {
  const { shown, sent } = conditions(query);
  const { by = "tool", only } = query;
  const [at, setAt] = useState(0);
  const asked = JSON.stringify(sent);
  const { value, error, loading } = useLoaded(() => api.map(sent), [asked]);
  const placed = useMemo(() => (value?.points || []).map((point) => ({ ...point,
    px: Math.round(EDGE + point.x * (WIDTH - 2 * EDGE)), py: Math.round(EDGE + (1 - point.y) * (HEIGHT - 2 * EDGE)) })), [value]);
  const groups = useMemo(() => groupsOf(placed, by), [placed, by]);
  const points = useMemo(() => (only && groups.has(only) ? placed.filter((point) => groupOf(point, by) === only) : placed), [placed, groups, only]);
  const here = points[Math.min(at, points.length - 1)];
  const about = value && [`${amount(points.length)} ${points.length === 1 ? "step" : "steps"}${value.more ? ", the newest" : ""}`,
    value.without ? `${amount(value.without)} without an embedding left out` : "", points.length > 2 ? `${Math.round((value.shares[0] + value.shares[1]) * 100)} % of the variance shown` : ""].filter(Boolean).join(" · ");
  return html`<section class="search map" aria-label="Map"><h1>Map of steps</h1>
    <details class="filter-box" open=${Object.keys(shown).length > 0}><summary>Filters</summary><${Filters} values=${shown} onChange=${(changes) => ask(changes)} /></details>
    <div class="bar-line"><${Choice} name="by" label="Colour by" value=${by} options=${BY} onChange=${(event) => ask({ by: event.target.value, only: "" })} />
      <span class="space"></span><span class="quiet-text">${about}</span></div>
    <${Busy} on=${loading && !value} /><${Failure} error=${error} />
    ${here && html`<${Plane} points=${points} groups=${groups} by=${by} at=${at} onAt=${setAt} /><${Here} point=${here} group=${groups.get(groupOf(here, by))} more=${points.filter((point) => point.px === here.px && point.py === here.py).length - 1} />
      <ul class="legend" aria-label="Groups">${[...groups.values()].map((group) => html`<li key=${group.name}><button type="button" class="small" aria-pressed=${String(only === group.name)}
        onClick=${() => ask({ only: only === group.name ? "" : group.name }, { replace: true })}><${Sign} colour=${group.colour} />${short(group.name, 40)} <span class="quiet-text">${amount(group.size)}</span></button></li>`)}</ul>`}
    ${value && !here && html`<div class="empty"><h2>Nothing to show yet</h2><p>${Object.keys(shown).length ? "No embedded step matches these filters." : "Steps appear here once they are recorded and embedded."}</p></div>`}
    </section>`;
}
