// Controls built from the server's description of options: a slider with a number, a checkbox, a list, or a text field.

import { isExport } from "./api.js";
import { el } from "./dom.js";
import { tr } from "./language.js";

const STEPS = 1000; // steps of a logarithmic slider
const HIDDEN = new Set(["rows", "columns", "view", "row", "column"]); // set by the page itself

/** Return the controls that are shown. */
export function shown(controls) {
  return controls.filter((control) => !HIDDEN.has(control.name));
}

/** Build the controls of a group. Moving a slider calls `set(name, value, default)`; value null means the default. */
export function controlList(group, controls, values, set) {
  return shown(controls).map((control) => {
    const id = `${group}-${control.name}`;
    const value = values[control.name] ?? control.default ?? "";
    const help = control.help ? el("p", { id: `${id}-help`, class: "hint" }, control.help) : null;
    const make = control.kind === "bool" ? checkbox : control.kind === "choice" ? chooser : isNumber(control) ? dial : textbox;
    const parts = make(control, id, value, (given) => set(control.name, given, control.default));
    return el("div", { class: `control ${control.kind}`, data: { option: control.name } }, parts, help);
  });
}

/** Disable controls whose other values an exported page cannot show; `canHave(control, value)` returns whether it holds that value. */
export function greyOut(node, controls, canHave) {
  if (!isExport()) return;
  for (const control of shown(controls)) {
    const first = control.min ?? 0;
    const words = control.choices?.length ? control.choices : control.kind === "bool" ? ["true", "false"] : control.kind === "int" ? [first, first + 1] : [];
    const free = words.filter((word) => canHave(control, String(word))).length > 1;
    const box = node.querySelector(`[data-option="${CSS.escape(control.name)}"]`);
    if (!free && box) for (const input of box.querySelectorAll("input, select, textarea")) input.disabled = true;
  }
}

function isNumber(control) {
  return control.kind === "int" || control.kind === "float";
}

function labelOf(control, id) {
  return el("label", { for: id }, control.name);
}

function described(control, id) {
  return control.help ? `${id}-help` : undefined;
}

function checkbox(control, id, value, set) {
  const checked = value === true || value === "true";
  const box = el("input", { type: "checkbox", id, checked, "aria-describedby": described(control, id) });
  box.addEventListener("change", () => set(String(box.checked)));
  return [el("span", { class: "line" }, box, labelOf(control, id))];
}

function chooser(control, id, value, set) {
  const options = control.choices.map((word) => el("option", { value: word }, String(word)));
  const list = el("select", { id, "aria-describedby": described(control, id) }, options);
  list.value = String(value);
  list.addEventListener("change", () => set(list.value));
  return [labelOf(control, id), list];
}

function textbox(control, id, value, set) {
  const words = control.choices?.length ? el("datalist", { id: `${id}-words` }, control.choices.map((word) => el("option", { value: word }))) : null;
  const long = control.max >= 1000;
  const box = el(long ? "textarea" : "input", {
    type: long ? null : "text", rows: long ? 4 : null, id, list: words ? words.id : undefined, value: String(value), spellcheck: "false", autocomplete: "off",
    maxlength: control.max ?? 4000, placeholder: control.default === null ? tr("not set") : "", "aria-describedby": described(control, id),
  });
  let wait = 0;
  box.addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(() => set(box.value === "" ? null : box.value), 250);
  });
  return [labelOf(control, id), box, words];
}

function dial(control, id, value, set) {
  const box = el("input", {
    type: "number", id, value: String(value), min: control.min, max: control.max, class: "number", inputmode: "decimal",
    step: control.kind === "int" ? control.step ?? 1 : "any", placeholder: tr("not set"), "aria-describedby": described(control, id),
  });
  const head = [labelOf(control, id), box];
  const slides = control.default !== null && control.slider !== false && isFinite(control.min ?? NaN) && isFinite(control.max ?? NaN)
    && (control.log || control.kind === "float" || control.max - control.min <= 512 * (control.step ?? 1)); // a longer linear slider has several values per pixel
  const scale = slides ? scaleOf(control, Number(value)) : null;
  const slider = slides
    ? el("input", {
      type: "range", min: 0, max: scale.steps, step: 1, "aria-label": tr("{name}, slider", { name: control.name }),
      value: String(scale.place(Number(value))), data: { slider: control.name },
    })
    : null;
  slider?.setAttribute("aria-valuetext", String(value));
  slider?.addEventListener("input", () => {
    const given = scale.value(Number(slider.value));
    box.value = String(given);
    slider.setAttribute("aria-valuetext", String(given));
    set(given);
  });
  let wait = 0;
  box.addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(() => {
      if (slider && box.value !== "") slider.value = String(scale.place(Number(box.value)));
      set(box.value === "" ? null : box.value);
    }, 200);
  });
  return slider ? [el("div", { class: "line" }, head), slider] : [el("div", { class: "line" }, head)];
}

/** Return the mapping between slider steps and values: linear or logarithmic. */
function scaleOf(control) {
  const whole = control.kind === "int";
  const { min, max } = control;
  const step = control.step ?? 1;
  if (control.log) {
    const from = Math.max(min, whole ? 1 : Number.MIN_VALUE);
    const ratio = Math.log(max / from);
    return {
      steps: STEPS,
      place: (value) => Math.round((STEPS * Math.log(Math.max(value, from) / from)) / ratio),
      value: (place) => {
        const exact = from * Math.exp((ratio * place) / STEPS);
        if (place === STEPS) return max;
        return whole ? Math.max(min, Math.round(round3(exact) / step) * step) : round3(exact);
      },
    };
  }
  if (whole) {
    return {
      steps: Math.max(1, Math.floor((max - min) / step)),
      place: (value) => Math.round((value - min) / step),
      value: (place) => min + place * step,
    };
  }
  return {
    steps: STEPS,
    place: (value) => Math.round((STEPS * (value - min)) / (max - min)),
    value: (place) => round3(min + ((max - min) * place) / STEPS),
  };
}

function round3(value) {
  return Number(value.toPrecision(3));
}
