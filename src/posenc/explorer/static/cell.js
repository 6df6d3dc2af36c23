// The explanation of a cell's value: the formula with the numbers substituted, step by step.

import { loadFrame } from "./api.js";
import { catalogue, queryFor, whoIs } from "./catalogue.js";
import { el, say } from "./dom.js";
import { tr, translate } from "./language.js";
import { isDark } from "./theme.js";

let asking = null;

/** Return whether the server explains cells of a view. */
export function explains(view) {
  const control = catalogue.views.get("cell")?.controls.find(({ name }) => name === "view");
  return Boolean(control && (!control.choices?.length || control.choices.includes(view?.id)));
}

/** Request the explanation of a cell for every side and show it; the Close button calls `close`. */
export async function explain(node, view, sides, { row, column, picture }, close) {
  if (!explains(view) || !Number.isFinite(row)) {
    node.hidden = true;
    return;
  }
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  const answers = await Promise.all(sides.map((side) =>
    loadFrame("cell", { ...queryFor(view, side), view: view.id, row: String(row), column: String(column) }, signal).catch((error) => ({ error }))));
  if (signal.aborted) return;
  const where = picture?.kind === "matrix" ? `${picture.y?.label} ${say(row)}, ${picture.x?.label} ${say(column)}` : `${picture?.x?.label || tr("place")} ${say(column)}`;
  const button = el("button", {
    type: "button", class: "quiet", onclick: () => {
      node.hidden = true;
      close();
    },
  }, tr("Close"));
  node.setAttribute("aria-label", tr("Why this value"));
  node.replaceChildren(
    el("div", { class: "line" }, el("h2", {}, tr("Why this value: {where}", { where })), button),
    el("div", { class: "cells-row" }, answers.map((answer, i) => card(answer, sides[i]))));
  node.hidden = false;
}

function card({ header, error }, side) {
  const who = whoIs(side, isDark());
  const head = who.letter ? el("h3", {}, `${who.letter} ${who.name}`) : null;
  if (head && who.colour) head.style.color = who.colour;
  if (error) return el("div", { class: "why-card" }, head, el("p", { class: "why" }, error.message));
  const { formula, substituted, steps, value } = header;
  return el("div", { class: "why-card" }, head,
    formula ? el("p", { class: "formula" }, formula) : null,
    substituted ? el("p", { class: "formula" }, substituted) : null,
    el("ol", {}, (steps || []).map((step) => el("li", {}, translate(step)))),
    value === undefined || value === null ? null : el("p", { class: "result" }, "= ", typeof value === "number" ? say(value, 7) : String(value)));
}
