// The shell: who may come in, which view shows, and what the keys do.

import * as api from "./api.js";
import { go, useAddress } from "./navigation.js";
import { html, render, useEffect, useLayoutEffect, useRef, useState } from "./preact.js";
import { Failure, useCaller } from "./shared.js";
import { SessionList, SessionView } from "./views/sessions.js";
import { CompareView } from "./views/compare.js";
import { RunView } from "./views/run.js";
import { RunList } from "./views/runs.js";
import { MapView } from "./views/map.js";
import { SearchView } from "./views/search.js";
import { WorkView } from "./views/work.js";

const VIEWS = [["sessions", "Sessions"], ["runs", "Runs"], ["search", "Search"], ["map", "Map"], ["work", "Work"]];
const THEME_KEY = "hybridagi-steps-theme";

const foreign = () => new Error("This token is not the server's.");

function Login({ refused, onDone }) {
  const [error, setError] = useState(refused ? foreign() : null);
  const enter = async (event) => {
    event.preventDefault();
    api.setToken(new FormData(event.target).get("token"));
    try {
      await api.sessions({ limit: 1 });
      onDone();
    } catch (problem) {
      api.forgetToken();
      setError(problem.status === 401 ? foreign() : problem);
    }
  };
  return html`<main class="login"><form onSubmit=${enter}>
    <h1>Step memory</h1>
    <p>Give the token that the server printed when it started, or your own. It stays in this tab only.</p>
    <label for="token">Token</label>
    <input id="token" name="token" type="password" required autocomplete="off" autofocus />
    <button class="primary">Open</button>
    <${Failure} error=${error} />
  </form></main>`;
}

function nextTheme(theme) {
  return { auto: "dark", dark: "light", light: "auto" }[theme];
}

function useTheme() {
  const [theme, setTheme] = useState(localStorage.getItem(THEME_KEY) || "auto");
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem(THEME_KEY, theme);
  }, [theme]);
  return [theme, () => setTheme(nextTheme(theme))];
}

const typing = (target) => /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);

function useKeys(onHelp) {
  useEffect(() => {
    const press = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
      const actions = {
        "/": () => go("search"), s: () => go("sessions"), r: () => go("runs"), m: () => go("map"), w: () => go("work"), "?": onHelp,
        c: () => document.getElementById("message")?.focus(),
      };
      if (!actions[event.key]) return;
      event.preventDefault();
      actions[event.key]();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

function Help({ onClose }) {
  const keys = [["/", "search"], ["s", "sessions"], ["r", "runs"], ["m", "map"], ["w", "work"], ["c", "write a message"],
    ["Enter", "send, open"], ["Shift + Enter", "new line"], ["↑ ↓", "next step of a run, of the map"], ["← →", "fold and unfold a step"], ["?", "this list"]];
  const button = useRef(null);
  useLayoutEffect(() => { // before a key can go elsewhere
    const before = document.activeElement;
    const press = (event) => {
      if (event.key === "Escape") onClose();
      if (event.key === "Tab") event.preventDefault(); // its button is all there is to reach
    };
    button.current.focus();
    addEventListener("keydown", press);
    return () => {
      removeEventListener("keydown", press);
      before?.focus();
    };
  }, []);
  return html`<div class="veil" onClick=${onClose}>
    <section class="dialog" role="dialog" aria-modal="true" aria-labelledby="help-title">
      <h2 id="help-title">Keys</h2>
      <dl>${keys.map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
      <button type="button" ref=${button} onClick=${onClose}>Close</button>
    </section></div>`;
}

function Views({ shown }) {
  const { seesAll } = useCaller();
  return html`<nav aria-label="Views">
    ${VIEWS.filter(([key]) => key !== "work" || seesAll).map(([key, name]) => html`<a href=${`#/${key}`} aria-current=${key === shown ? "page" : undefined}>${name}</a>`)}
  </nav>`;
}

function App() {
  const [inside, setInside] = useState(api.hasToken());
  const [refused, setRefused] = useState(false);
  const [help, setHelp] = useState(false);
  const [theme, changeTheme] = useTheme();
  const { parts: [view = "sessions", id, other], query } = useAddress();
  useKeys(() => setHelp(true));
  useLayoutEffect(() => { // before anything is asked
    const refuse = () => { setInside(false); setRefused(true); };
    addEventListener("refused", refuse);
    return () => removeEventListener("refused", refuse);
  }, []);
  if (!inside) return html`<${Login} refused=${refused} onDone=${() => { setRefused(false); setInside(true); }} />`;
  const leave = () => { api.forgetToken(); setInside(false); };
  const shown = view === "compare" ? "runs" : VIEWS.some(([key]) => key === view) ? view : "sessions";
  return html`<div class="shell">
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to content</a>
    <header class="top">
      <img src="static/icon.svg" alt="" width="26" height="26" /><strong>Step memory</strong>
      <${Views} shown=${shown} />
      <span class="space"></span>
      <button type="button" class="quiet" onClick=${changeTheme} aria-label=${`Theme: ${theme}. Change`}>${{ auto: "◐", dark: "☾", light: "☀" }[theme]}</button>
      <button type="button" class="quiet" onClick=${() => setHelp(true)} aria-label="Keyboard help">?</button>
      <button type="button" class="quiet" onClick=${leave}>Leave</button>
    </header>
    ${shown === "search" ? html`<main id="main" class="wide" tabindex="-1"><${SearchView} query=${id ? { like: id, ...query } : query} /></main>`
      : shown === "map" ? html`<main id="main" class="wide" tabindex="-1"><${MapView} query=${query} /></main>`
      : shown === "work" ? html`<main id="main" class="wide" tabindex="-1"><${WorkView} /></main>`
      : view === "compare" ? html`<main id="main" class="wide" tabindex="-1"><${CompareView} ids=${[id, other]} /></main>`
      : html`<div class=${`columns ${id ? "with-choice" : ""}`}>
          <aside class="list" aria-label=${shown}>
            ${shown === "runs" ? html`<${RunList} chosen=${id} query=${query} />` : html`<${SessionList} chosen=${id} />`}
          </aside>
          <main id="main" tabindex="-1">
            ${shown === "runs" ? html`<${RunView} key=${id} id=${id} query=${query} />` : html`<${SessionView} key=${id || "new"} id=${id} />`}
          </main>
        </div>`}
    ${help && html`<${Help} onClose=${() => setHelp(false)} />`}
  </div>`;
}

api.takeToken();
addEventListener("hashchange", () => { if (api.takeToken()) location.reload(); }); // an address pasted into an open page
render(html`<${App} />`, document.getElementById("app"));
