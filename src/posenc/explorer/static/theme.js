// Light and dark: what the system prefers, unless the reader chose; and the scheme's colours for what is drawn.

import { el } from "./dom.js";

const KEY = "posenc-theme";
const NEXT = { "": "dark", dark: "light", light: "" };
const WORDS = { "": "auto", dark: "dark", light: "light" };
const system = window.matchMedia("(prefers-color-scheme: dark)");
const changed = new Set();
let chosen = "";
let cache = null;

/** Begin with the scheme of the address, or with the one chosen last, and bring the button to life. */
export function startTheme(button, fromAddress) {
  choose(fromAddress || remembered());
  button.addEventListener("click", () => choose(NEXT[chosen], true));
  system.addEventListener("change", tell);

  function choose(theme, keep = false) {
    chosen = theme in NEXT ? theme : "";
    if (chosen) document.documentElement.dataset.theme = chosen;
    else delete document.documentElement.dataset.theme;
    button.replaceChildren(el("span", { class: "wide" }, "Theme: "), WORDS[chosen]);
    button.setAttribute("aria-label", `Theme: ${WORDS[chosen]}. Choose the next.`);
    if (keep) remember(chosen);
    tell();
  }
}

/** Call back whenever the colours change. */
export function onTheme(call) {
  changed.add(call);
}

/** Say whether the page is dark now. */
export function isDark() {
  return chosen ? chosen === "dark" : system.matches;
}

/** Return the scheme's colours as `rgb(...)`, for canvas and charts, which read no variables. */
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

function tell() {
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
    // then it lasts as long as the page
  }
}
