// Light and dark scheme: the system's preference unless the user chose one; and the scheme's colours for drawing.

import { el } from "./dom.js";

const KEY = "posenc-theme";
const NEXT = { "": "dark", dark: "light", light: "" };
const WORDS = { "": "auto", dark: "dark", light: "light" };
const system = window.matchMedia("(prefers-color-scheme: dark)");
const changed = new Set();
let chosen = "";
let cache = null;

/** Start with the scheme in the address or the last choice, and connect the button. */
export function startTheme(button, fromAddress) {
  choose(fromAddress || remembered());
  button.addEventListener("click", () => choose(NEXT[chosen], true));
  system.addEventListener("change", notify);

  function choose(theme, keep = false) {
    chosen = theme in NEXT ? theme : "";
    if (chosen) document.documentElement.dataset.theme = chosen;
    else delete document.documentElement.dataset.theme;
    button.replaceChildren(el("span", { class: "wide" }, "Theme: "), WORDS[chosen]);
    button.setAttribute("aria-label", `Theme: ${WORDS[chosen]}. Switch to the next.`);
    if (keep) remember(chosen);
    notify();
  }
}

/** Register a callback for changes of the colours. */
export function onTheme(call) {
  changed.add(call);
}

/** Return whether the page is dark now. */
export function isDark() {
  return chosen ? chosen === "dark" : system.matches;
}

/** Return the scheme's colours as `rgb(...)`: canvas and charts cannot read CSS variables. */
export function colours() {
  if (cache) return cache;
  const probe = el("span");
  document.body.append(probe);
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  cache = Object.fromEntries(["ink", "soft", "line", "hair", "paper", "panel", "accent"].map((name) => [name, read(name)]));
  probe.remove();
  return cache;
}

function notify() {
  cache = null;
  for (const call of changed) call();
}

function remembered() {
  try {
    return localStorage.getItem(KEY) || "";
  } catch {
    return ""; // a page opened from disk may have no storage
  }
}

function remember(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // without storage the choice lasts as long as the page
  }
}
