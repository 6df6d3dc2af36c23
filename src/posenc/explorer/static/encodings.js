// The encodings panel: A, B, their options, and the view's options.

import { canAnswer, isExport } from "./api.js";
import { catalogue, fits, isModel, queryFor, viewsOf } from "./catalogue.js";
import { controlList, greyOut, shown } from "./controls.js";
import { el } from "./dom.js";
import { tr } from "./language.js";
import { change, setOption, state } from "./state.js";

/** Fill the encodings panel and return its update function, which takes the name of the part of the state that changed. */
export function encodingsPanel(panel) {
  const boxes = { A: el("section", { class: "group" }), B: el("section", { class: "group" }), view: el("section", { class: "group" }) };
  panel.replaceChildren(boxes.A, boxes.B, boxes.view);
  const update = (what) => {
    if (what === "A" || what === "all") side(boxes.A, "A", update);
    if (what === "B" || what === "all") side(boxes.B, "B", update);
    if (what !== "B") viewOptions(boxes.view);
  };
  update("all");
  return update;
}

function side(box, letter, update) {
  const group = letter.toLowerCase();
  const name = state[group];
  const encoding = catalogue.encodings.get(name);
  const list = el("select", { id: `encoding-${group}` }, letter === "B" ? el("option", { value: "" }, tr("none")) : null, families());
  list.value = name;
  list.addEventListener("change", () => {
    change({ [group]: list.value, [`${group}Options`]: {}, at: "", ...(letter === "A" ? { view: fittingView(list.value) } : {}) }, "encoding");
    update(letter);
    document.getElementById(`encoding-${group}`).focus();
  });
  const label = el("label", { for: `encoding-${group}`, class: "big" }, letter === "A" ? tr("Encoding A") : tr("Compare with B"));
  const swap = letter === "B" && name ? el("button", { type: "button", class: "quiet small", onclick: () => {
    change({ a: state.b, b: state.a, aOptions: state.bOptions, bOptions: state.aOptions, at: "", view: fittingView(state.b) }, "encoding");
    update("all");
  } }, tr("Swap A and B")) : null;
  const scale = letter === "B" && name ? el("div", { class: "control bool" }, el("span", { class: "line" },
    el("input", { type: "checkbox", id: "scale", checked: state.scale !== "own", onchange: (event) => change({ scale: event.target.checked ? "" : "own" }, "scale") }),
    el("label", { for: "scale" }, tr("same scale for A and B")))) : null;
  box.replaceChildren(...[label, list, swap, scale].filter(Boolean));
  if (!encoding) return;
  const options = controlList(group, encoding.options, state[`${group}Options`], (option, value, fallback) => setOption(group, option, value, fallback));
  box.append(
    el("p", { class: "summary" }, encoding.summary),
    encoding.formula ? el("p", { class: "formula" }, encoding.formula) : null,
    options.length ? el("details", { open: letter === "A" || options.length < 5, class: "options" }, el("summary", {}, tr("Options of {letter}", { letter })), options) : null,
    paper(encoding));
  box.style.setProperty("--c", `light-dark(${encoding.colour}, ${encoding.colour_dark || encoding.colour})`);
  greyOut(box, encoding.options, () => false);
}

function paper({ paper: words, arxiv }) {
  if (!words) return "";
  const link = arxiv ? el("a", { href: `https://arxiv.org/abs/${arxiv}`, rel: "noreferrer noopener", target: "_blank" }, words) : words;
  return el("p", { class: "hint", lang: "en" }, link);
}

function families() {
  const groups = new Map();
  for (const encoding of catalogue.encodings.values()) groups.set(encoding.family, [...(groups.get(encoding.family) || []), encoding.name]);
  return [...groups].map(([family, names]) => el("optgroup", { label: family }, names.map((name) =>
    el("option", { value: name, disabled: isExport() && !held(name) }, name))));
}

function held(name) {
  return [...catalogue.views.keys()].some((id) => canAnswer(`/api/view/${id}`, { a: name })) || name === state.a || name === state.b;
}

/** Return the current view if it applies to the encoding, else the first that does. */
export function fittingView(name) {
  const view = catalogue.views.get(state.view);
  if (view && fits(name, view)) return view.id;
  return viewsOf("encodings").find((one) => fits(name, one))?.id || state.view;
}

/** Fill a box with the options of the current view, except those that the panel shows in another way. */
export function viewOptions(box, except = new Set()) {
  const view = catalogue.views.get(state.view);
  const controls = view ? view.controls.filter((control) => !isModel(view, control) && !except.has(control.name)) : [];
  const key = `${state.view}|${state.model}`;
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  const made = controlList("v", controls, state.v, (option, value, fallback) => setOption("v", option, value, fallback));
  box.hidden = !shown(controls).length;
  box.replaceChildren(el("h2", { class: "big" }, tr("This view")), ...made);
  const letter = view?.of_encoding ? "A" : "";
  greyOut(box, controls, (control, value) => canAnswer(`/api/view/${view.id}`, queryFor(view, letter, {}, { [control.name]: value })));
}
