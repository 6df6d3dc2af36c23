// What the server said at the start: encodings, views, models; and the questions that the state stands for.

import { shown } from "./controls.js";
import { state } from "./state.js";

/** What there is, by name. */
export const catalogue = { encodings: new Map(), views: new Map(), models: [], study: null, target: null, version: "", start: null };

/** The sections of the page, in order. */
export const SECTIONS = [
  { id: "encodings", title: "Encodings", about: "Any encoding, drawn from the code that runs in models." },
  { id: "models", title: "Models", about: "What real models' settings mean for their positions." },
  { id: "bench", title: "Extension", about: "A longer context: what each method does to every pair of lanes." },
  { id: "attention", title: "Attention", about: "Where small trained models look." },
];

/** Keep what the server said. */
export function setCatalogue(start) {
  catalogue.encodings = new Map(start.encodings.map((encoding) => [encoding.name, encoding]));
  catalogue.views = new Map(start.views.map((view) => [view.id, { ...view, controls: view.controls || view.options || [] }]));
  Object.assign(catalogue, { models: start.models || [], study: start.study || null, target: start.target, version: start.version });
  catalogue.start = start;
}

/** Return the section that a view stands in; null for what is no tab. */
export function sectionOf(view) {
  if (!view || view.id === "cell") return null;
  if (view.of_encoding || view.of === "encoding") return "encodings";
  if (view.id.startsWith("model")) return "models";
  if (view.id.startsWith("extension")) return "bench";
  return view.id.startsWith("attention") ? "attention" : "encodings";
}

/** Return the views of a section. */
export function viewsOf(section) {
  return [...catalogue.views.values()].filter((view) => sectionOf(view) === section);
}

/** Say whether an encoding has such a picture. */
export function fits(name, view) {
  return Boolean(catalogue.encodings.get(name)?.views?.includes(view.id));
}

/** Return "A" and, where one is chosen, "B" for views of encodings; one nameless side for others. */
export function sidesOf(view) {
  if (sectionOf(view) !== "encodings") return [""];
  return state.b ? ["A", "B"] : ["A"];
}

/** Say whether a control names the model, which the shelf sets. */
export function isModel(view, control) {
  return sectionOf(view) === "models" && control.name === "model";
}

/** Return the question for one side of a view, as an object; what is at its default is left out. */
export function queryFor(view, side, size = {}, changes = {}) {
  const query = {};
  if (side) {
    const [name, options] = side === "A" ? [state.a, state.aOptions] : [state.b, state.bOptions];
    query.a = name;
    for (const control of catalogue.encodings.get(name)?.options || []) {
      const value = options[control.name];
      if (value !== undefined && value !== String(control.default)) query[`a.${control.name}`] = value;
    }
  }
  for (const control of view.controls) {
    if (isModel(view, control) && state.model && state.model !== control.default) query[control.name] = state.model;
    const value = changes[control.name] ?? state.v[control.name];
    if (value === undefined || isModel(view, control) || !shown([control]).length) continue;
    const kept = within(control, value);
    if (kept !== null && kept !== String(control.default)) query[control.name] = kept;
  }
  for (const name of ["rows", "columns"]) {
    const control = view.controls.find((one) => one.name === name);
    if (control && size[name]) query[name] = String(Math.min(size[name], control.max ?? 1024));
  }
  return query;
}

/** Return a value that this view's control takes; views share options by name, and their limits differ. */
export function within(control, value) {
  if (control.kind === "choice") return control.choices.map(String).includes(value) ? value : null;
  if (control.kind !== "int" && control.kind !== "float") return value;
  const number = Number(value);
  if (Number.isNaN(number)) return value; // the server says what is wrong with it
  return String(Math.max(control.min ?? -Infinity, Math.min(control.max ?? Infinity, number)));
}

/** Return name, colour and letter of a side. */
export function whoIs(side, dark) {
  if (!side) return { letter: "", name: "", colour: null };
  if (side === "D") return { letter: "B−A", name: "difference", colour: null };
  const name = side === "A" ? state.a : state.b;
  const encoding = catalogue.encodings.get(name);
  return { letter: side, name, cls: encoding?.cls, colour: encoding ? (dark ? encoding.colour_dark : encoding.colour) || encoding.colour : null };
}
