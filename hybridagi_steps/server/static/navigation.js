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
  return { parts: path.split("/").map(decoded), query: Object.fromEntries(new URLSearchParams(query)) };
}

export function link(names, query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const asked = new URLSearchParams(kept).toString();
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
