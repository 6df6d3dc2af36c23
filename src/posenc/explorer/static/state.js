// The page's state and its address: the query string holds every choice.

/** The current state: view, encodings with their options, the views' options, a model, and the cell that is explained. */
export const state = { view: "", a: "", aOptions: {}, b: "", bOptions: {}, v: {}, model: "", at: "", scale: "", theme: "", lang: "" };

/** Defaults that hold on every machine, so that the address can omit them. */
export const usual = { model: "" };

const listeners = new Set();
const KEYS = ["view", "a", "b", "model", "at", "scale", "theme", "lang"];
const GROUPS = { a: "aOptions", b: "bOptions", v: "v" };

/** Read the state from a query string; keys that are missing get their defaults. */
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

/** Change the state, write it to the address, and call every listener; `what` names the part that changed. */
export function change(part, what) {
  Object.assign(state, part);
  const query = writeState();
  try {
    history.replaceState(null, "", query ? `?${query}` : location.pathname);
  } catch {
    // a page opened from disk may not change its address; the state stays in memory
  }
  for (const listener of listeners) listener(what);
}

/** Register a callback that receives the name of the part that changed. */
export function onChange(listener) {
  listeners.add(listener);
}

/** Set one option of "a", "b" or "v"; the address omits defaults. */
export function setOption(group, name, value, fallback) {
  const key = GROUPS[group];
  const options = { ...state[key] };
  if (value === null || String(value) === String(fallback)) delete options[name];
  else options[name] = String(value);
  change({ [key]: options }, group === "v" ? "option" : "encoding option");
}

/** Return what the browser remembers under a key. */
export function remembered(key) {
  try {
    return localStorage.getItem(key) || "";
  } catch {
    return ""; // a page opened from disk may have no storage
  }
}

/** Let the browser remember a choice. */
export function remember(key, choice) {
  try {
    localStorage.setItem(key, choice);
  } catch {
    // without storage the choice lasts as long as the page
  }
}

function split(key) {
  const dot = key.indexOf(".");
  return dot < 0 ? [key, ""] : [key.slice(0, dot), key.slice(dot + 1)];
}
