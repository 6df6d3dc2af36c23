// What the page shows, and its address: everything that a reader can choose stands in the query string.

/** The present state: view, encodings with their options, the views' options, a model, and the cell that is explained. */
export const state = { view: "", a: "", aOptions: {}, b: "", bOptions: {}, v: {}, model: "", at: "", scale: "", theme: "" };

/** What is shown where the address says nothing, wherever it is opened: it need not stand there. */
export const usual = { model: "" };

const listeners = new Set();
const KEYS = ["view", "a", "b", "model", "at", "scale", "theme"];
const GROUPS = { a: "aOptions", b: "bOptions", v: "v" };

/** Read the state from a query string; what is not named is as the page begins. */
export function readState(query) {
  for (const key of KEYS) state[key] = "";
  for (const group of Object.values(GROUPS)) state[group] = {};
  for (const [key, value] of new URLSearchParams(query)) {
    const [group, option] = split(key);
    if (option && GROUPS[group]) state[GROUPS[group]][option] = value;
    else if (KEYS.includes(key)) state[key] = value;
  }
}

/** Write the state as a query string. */
export function writeState() {
  const query = new URLSearchParams();
  for (const key of KEYS) {
    if (state[key] && state[key] !== usual[key]) query.set(key, state[key]);
    if (!GROUPS[key] || !state[key]) continue;
    for (const [option, value] of Object.entries(state[GROUPS[key]])) query.set(`${key}.${option}`, value);
  }
  for (const [option, value] of Object.entries(state.v)) query.set(`v.${option}`, value);
  return query.toString();
}

/** Change the state, put it into the address, and tell everyone who listens: `what` says which part changed. */
export function change(part, what) {
  Object.assign(state, part);
  const query = writeState();
  try {
    history.replaceState(null, "", query ? `?${query}` : location.pathname);
  } catch {
    // a page opened from disk may not change its address; the state lives on in memory
  }
  for (const listener of listeners) listener(what);
}

/** Call back with the name of the part that changed. */
export function onChange(listener) {
  listeners.add(listener);
}

/** Set one option of "a", "b" or "v"; the default is left out of the address. */
export function setOption(group, name, value, fallback) {
  const key = GROUPS[group];
  const options = { ...state[key] };
  if (value === null || String(value) === String(fallback)) delete options[name];
  else options[name] = String(value);
  change({ [key]: options }, group === "v" ? "option" : "encoding option");
}

function split(key) {
  const dot = key.indexOf(".");
  return dot < 0 ? [key, ""] : [key.slice(0, dot), key.slice(dot + 1)];
}
