// Light and dark scheme: the system's preference unless the user chose one; and the scheme's colours for drawing.

import { el } from "./dom.js";
import { onLanguage, tr } from "./language.js";
import { remember, remembered } from "./state.js";

const KEY = "posenc-theme";
const NEXT = { "": "dark", dark: "light", light: "" };
const WORDS = () => ({ "": tr("auto"), dark: tr("dark"), light: tr("light") });
const system = window.matchMedia("(prefers-color-scheme: dark)");
const changed = new Set();
let chosen = "";
let cache = null;

/** Start with the scheme in the address or the last choice, and connect the button. */
export function startTheme(button, fromAddress) {
  choose(fromAddress || remembered(KEY));
  button.addEventListener("click", () => choose(NEXT[chosen], true));
  system.addEventListener("change", notify);
  onLanguage(label);

  function choose(theme, keep = false) {
    chosen = theme in NEXT ? theme : "";
    if (chosen) document.documentElement.dataset.theme = chosen;
    else delete document.documentElement.dataset.theme;
    if (keep) remember(KEY, chosen);
    label();
    notify();
  }

  function label() {
    const theme = WORDS()[chosen];
    button.replaceChildren(el("span", { class: "wide" }, tr("Theme: ")), theme);
    button.setAttribute("aria-label", tr("Theme: {theme}. Switch to the next.", { theme }));
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
