// The page's entry point: header, sections, tabs, and the panel as a drawer on narrow screens.

import { canAnswer, isExport, loadStart, loadTexts } from "./api.js";
import { SECTIONS, catalogue, fits, queryFor, sectionOf, setCatalogue, viewsOf } from "./catalogue.js";
import { el } from "./dom.js";
import { encodingsPanel, fittingView } from "./encodings.js";
import { LANGUAGES, current, firstLanguage, keepLanguage, onLanguage, speak, tr, translate } from "./language.js";
import { loadPlotly } from "./loader.js";
import { defaultModel, firstModel, modelsPanel } from "./models.js";
import { attentionPanel, benchPanel, learnFromFrame } from "./sections.js";
import { refresh, restart, startStage } from "./stage.js";
import { change, onChange, readState, state, usual } from "./state.js";
import { startTheme } from "./theme.js";

const PANELS = { encodings: encodingsPanel, models: modelsPanel, bench: benchPanel, attention: attentionPanel };
const [panel, tabs, sections, status] = ["panel", "tabs", "sections", "status"].map((id) => document.getElementById(id));
let shownSection = null;
let updatePanel = null;

begin().catch(report);

function report(error) {
  status.className = "error";
  status.textContent = error.message;
}

async function begin() {
  readState(location.search || window.POSENC_STATE || "");
  await startLanguage(document.getElementById("language-button"));
  startTheme(document.getElementById("theme-button"), state.theme);
  startDrawer();
  if (state.view && !["heat", "similarity"].includes(state.view)) loadPlotly().catch(() => {}); // loads while the server computes; the first chart reports a failure
  const start = await loadStart((early) => {
    document.getElementById("version").textContent = early.version || "";
    status.textContent = early.ready ? tr("Drawing.") : tr("Loading torch and the encodings: a few seconds, once.");
  });
  setCatalogue(start);
  complete();
  startStage(document.getElementById("stage"), learnFromFrame);
  buildSections();
  onChange((what) => { if (what !== "option" && what !== "encoding option" && what !== "at" && what !== "scale" && what !== "language") frame(what); });
  frame("all");
  refresh();
  onLanguage(() => {
    setCatalogue(catalogue.start);
    buildSections();
    shownSection = null;
    frame("all");
    restart();
  });
}

/** Start in the reader's language, and let the button switch to the other one. */
async function startLanguage(button) {
  const label = () => {
    const other = current() === "en" ? "zh" : "en";
    button.textContent = LANGUAGES[other];
    button.lang = other;
  };
  onLanguage(label);
  button.addEventListener("click", () => speak(button.lang, loadTexts).then(() => {
    keepLanguage(current());
    change({ lang: current() }, "language");
  }, report));
  await speak(firstLanguage(state.lang), loadTexts).catch(() => speak("en", loadTexts));
  status.textContent = tr("The page is starting.");
}

/** Fill in what the address does not set: the target's encoding or model, and a view that it supports. */
function complete() {
  const { target } = catalogue;
  if (!catalogue.encodings.has(state.a)) {
    const wanted = target?.kind === "encoding" ? target.id || target.name : "rope";
    Object.assign(state, { a: catalogue.encodings.has(wanted) ? wanted : [...catalogue.encodings.keys()][0], aOptions: {} });
  }
  if (state.b && !catalogue.encodings.has(state.b)) Object.assign(state, { b: "", bOptions: {} });
  const begun = firstModel();
  if (begun === defaultModel()) usual.model = begun;
  if (!state.model) state.model = begun;
  if (catalogue.views.has(state.view)) return;
  const section = { model: "models", file: "models", study: "attention" }[target?.kind] || "encodings";
  state.view = viewsOf(section)[0] && section !== "encodings" ? viewsOf(section)[0].id : fittingView(state.a);
}

function buildSections() {
  sections.replaceChildren(...SECTIONS().filter(({ id }) => viewsOf(id).some((view) => id === "encodings" || has(view, ""))).map(({ id, title, about }) => el("button", {
    type: "button", data: { section: id }, title: about, onclick: () => {
      const view = id === "encodings" ? fittingView(state.a) : viewsOf(id)[0].id;
      if (sectionOf(catalogue.views.get(state.view)) !== id) change({ view, at: "" }, "view");
    },
  }, title)));
}

/** Update sections, tabs and panel from the state. */
function frame(what) {
  const view = catalogue.views.get(state.view);
  const section = sectionOf(view) || "encodings";
  for (const button of sections.children) {
    if (button.dataset.section === section) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  }
  buildTabs(section);
  if (shownSection !== section) {
    shownSection = section;
    updatePanel = PANELS[section](panel);
  } else if (what === "view") updatePanel("view");
  const both = state.b ? tr("{a} and {b}", { a: state.a, b: state.b }) : state.a;
  document.title = `${view?.title || tr("See position")} · ${section === "models" ? state.model : section === "encodings" ? both : "posenc"} · posenc explorer`;
}

/** Return whether a view can be shown: always with a server; in an exported page only if the file holds it. */
function has(view, side) {
  return canAnswer(`/api/view/${view.id}`, queryFor(view, side));
}

function buildTabs(section) {
  const views = viewsOf(section);
  const hadFocus = tabs.contains(document.activeElement);
  tabs.hidden = views.length < 2;
  tabs.replaceChildren(...views.map((view) => {
    const chosen = view.id === state.view;
    const none = section === "encodings" && !(fits(state.a, view) && has(view, "A"));
    return el("button", {
      type: "button", role: "tab", id: `tab-${view.id}`, "aria-selected": String(chosen), "aria-controls": "stage", tabindex: chosen ? "0" : "-1",
      "aria-disabled": none ? "true" : undefined, title: none ? tr("This view does not apply to {name}", { name: state.a }) : view.help, data: { view: view.id },
      onclick: () => { if (!none) change({ view: view.id, at: "" }, "view"); },
    }, view.title);
  }));
  document.getElementById("stage").setAttribute("aria-labelledby", `tab-${state.view}`);
  const current = tabs.querySelector('[aria-selected="true"]');
  if (hadFocus) current?.focus();
  if (current && tabs.scrollWidth > tabs.clientWidth) tabs.scrollLeft = current.offsetLeft - tabs.clientWidth / 2 + current.clientWidth / 2;
}

tabs.addEventListener("keydown", (event) => {
  const open = [...tabs.children].filter((tab) => tab.getAttribute("aria-disabled") !== "true");
  const at = open.indexOf(document.activeElement);
  const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: open.length - 1 }[event.key];
  if (to === undefined || !open.length) return;
  event.preventDefault();
  open[(to + open.length) % open.length].click();
});

/** On narrow screens the panel opens as a drawer over the page. */
function startDrawer() {
  const button = document.getElementById("drawer-button");
  const shade = document.getElementById("shade");
  const narrow = window.matchMedia("(max-width: 860px)");
  const label = () => { button.textContent = document.body.classList.contains("drawer") ? tr("Done") : tr("Controls"); };
  onLanguage(label);
  const set = (open) => {
    document.body.classList.toggle("drawer", open);
    button.setAttribute("aria-expanded", String(open));
    label();
    shade.hidden = !open;
    panel.inert = narrow.matches && !open;
    if (open) panel.querySelector("select, input, button")?.focus();
  };
  button.addEventListener("click", () => set(!document.body.classList.contains("drawer")));
  shade.addEventListener("click", () => set(false));
  narrow.addEventListener("change", () => set(false));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !document.body.classList.contains("drawer")) return;
    set(false);
    button.focus();
  });
  set(false);
  if (isExport()) document.body.classList.add("exported");
}
