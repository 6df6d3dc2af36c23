// The server's start answer (encodings, views, models), and the queries that the state stands for.

import { shown } from "./controls.js";
import { tr, translate } from "./language.js";
import { state } from "./state.js";

/** Encodings, views and models, by name. */
export const catalogue = { encodings: new Map(), views: new Map(), models: [], study: null, target: null, version: "", start: null };

/** The sections of the page, in order. */
export const SECTIONS = () => [
  { id: "encodings", title: tr("Encodings"), about: tr("Any encoding, computed by the code that models run.") },
  { id: "models", title: tr("Models"), about: tr("Positions in real models, read from their configurations.") },
  { id: "bench", title: tr("Extension"), about: tr("Context extension: what each method does to every pair of dimensions.") },
  { id: "attention", title: tr("Attention"), about: tr("Attention maps of small trained models.") },
];

/** Store the server's start answer, in the page's language. */
export function setCatalogue(start) {
  const helped = (controls) => controls.map((control) => ({ ...control, help: translate(control.help) }));
  catalogue.encodings = new Map(start.encodings.map((one) => [one.name, { ...one, summary: translate(one.summary), options: helped(one.options) }]));
  catalogue.views = new Map(start.views.map((view) =>
    [view.id, { ...view, title: translate(view.title), help: translate(view.help), controls: helped(view.controls || view.options || []) }]));
  Object.assign(catalogue, { models: start.models || [], study: start.study || null, target: start.target, version: start.version });
  catalogue.start = start;
}

/** Return the section of a view; null for a view without a tab. */
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

/** Return whether a view applies to an encoding. */
export function fits(name, view) {
  return Boolean(catalogue.encodings.get(name)?.views?.includes(view.id));
}

/** Return ["A"], or ["A", "B"] if B is chosen, for views of encodings; one unnamed side for other views. */
export function sidesOf(view) {
  if (sectionOf(view) !== "encodings") return [""];
  return state.b ? ["A", "B"] : ["A"];
}

/** Return whether a control names the model, which the list of models sets. */
export function isModel(view, control) {
  return sectionOf(view) === "models" && control.name === "model";
}

/** Return the query for one side of a view, as an object without the values that equal the default. */
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

/** Limit a value to a control's range: views share options by name, and their ranges differ. */
export function within(control, value) {
  if (control.kind === "choice") return control.choices.map(String).includes(value) ? value : null;
  if (control.kind !== "int" && control.kind !== "float") return value;
  const number = Number(value);
  if (Number.isNaN(number)) return value; // the server reports the error
  return String(Math.max(control.min ?? -Infinity, Math.min(control.max ?? Infinity, number)));
}

/** Return the name, colour and letter of a side. */
export function whoIs(side, dark) {
  if (!side) return { letter: "", name: "", colour: null };
  if (side === "D") return { letter: "B−A", name: tr("difference"), colour: null };
  const name = side === "A" ? state.a : state.b;
  const encoding = catalogue.encodings.get(name);
  return { letter: side, name, cls: encoding?.cls, colour: encoding ? (dark ? encoding.colour_dark : encoding.colour) || encoding.colour : null };
}
