// Addresses inside the page.
const path = (...names) => `#/${names.map(encodeURIComponent).join("/")}`;
export const to = path;
export const go = (...names) => { location.hash = path(...names); };
