// The address is the page's state: what is shown, filtered and chosen, so that Back and sharing work.

import { useEffect, useState } from "./preact.js";

const decoded = (part) => {
  try {
    return decodeURIComponent(part);
  } catch (_) {
    return part; // typed by hand: shown as it is
  }
};

export function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const asked = new URLSearchParams(query);
  const values = [...new Set(asked.keys())].map((name) => [name, asked.getAll(name)]);
  return { parts: path.split("/").map(decoded), query: Object.fromEntries(values.map(([name, all]) => [name, all.length > 1 ? all : all[0]])) };
}

// A query's text: a list is its members one by one, what is empty is left out.
export function queryText(values) {
  const pairs = Object.entries(values).flatMap(([name, value]) => [value].flat().map((one) => [name, one]));
  return new URLSearchParams(pairs.filter(([, value]) => value !== "" && value != null)).toString();
}

export function link(names, query = {}) {
  const asked = queryText(query);
  return `#/${names.map(encodeURIComponent).join("/")}${asked ? `?${asked}` : ""}`;
}

export const to = (...names) => link(names);
export const go = (...names) => { location.hash = to(...names); };

// Changes some of what the address asks for; `replace` leaves no entry behind for Back.
export function ask(changes, { replace = false } = {}) {
  const { parts, query } = address();
  const next = link(parts, { ...query, ...changes });
  if (!replace) {
    location.hash = next;
    return;
  }
  history.replaceState(null, "", next);
  dispatchEvent(new Event("hashchange"));
}

export function useAddress() {
  const [state, setState] = useState(address());
  useEffect(() => {
    const follow = () => setState(address());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return state;
}
