// The main area: requests the pictures of the current state, draws them side by side, and links their cursors.

import { canAnswer, loadFrame } from "./api.js";
import { catalogue, queryFor, sidesOf, whoIs } from "./catalogue.js";
import { explain, explains } from "./cell.js";
import { copyBar } from "./copy.js";
import { el, say } from "./dom.js";
import { Figure } from "./figure.js";
import { factsOf, picturesOf, stripsOf, tableOf } from "./grammar.js";
import { tr, translate } from "./language.js";
import { commonScale, difference } from "./pictures.js";
import { readout } from "./readout.js";
import { change, onChange, setOption, state } from "./state.js";
import { drawStrip } from "./strips.js";
import { isDark, onTheme } from "./theme.js";

const STALE = 250; // ms after which a request for an old state is aborted
const figures = new Map(); // by row and letter
let parts = null;
let running = null;
let again = false;
let asked = 0;
let drawn = { view: null, frames: [], rows: [] };

/** Build the stage, and redraw whenever the state changes. Each answer calls `onFrame(view, headers)`. */
export function startStage(stage, onFrame) {
  parts = {
    title: document.getElementById("title"), help: document.getElementById("help"), status: document.getElementById("status"), stage, onFrame,
    facts: el("dl", { class: "facts" }), panels: el("div", { class: "panels" }), strips: el("div", { class: "strips" }), table: el("div", { class: "table-box" }),
    read: el("div", { class: "readout" }), live: el("p", { class: "unseen", "aria-live": "polite" }),
    cell: el("section", { class: "cell", hidden: true }), notes: el("ul", { class: "notes" }), copy: el("div", { class: "copy" }),
  };
  stage.append(parts.facts, parts.read, parts.live, parts.panels, parts.cell, parts.strips, parts.table, parts.notes, parts.copy);
  readout(parts, []);
  onChange((what) => { if (what !== "at" && what !== "language") refresh(); });
  onTheme(() => { if (drawn.view) lay(); });
  let width = stage.clientWidth;
  new ResizeObserver(() => {
    if (Math.abs(stage.clientWidth - width) < 2) return;
    width = stage.clientWidth;
    for (const figure of figures.values()) figure.draw();
    clearTimeout(parts.wait);
    parts.wait = setTimeout(refresh, 200); // heat maps are computed for the new width
  }).observe(stage);
}

/** Request and draw again. While a request runs, only the newest state waits; an old request is aborted. */
export function refresh() {
  asked = performance.now();
  if (!running) return run();
  again = true;
  if (performance.now() - running.since > STALE || running.view !== state.view) running.controller.abort();
  return undefined;
}

/** Redraw all pictures at their current size. */
export function redraw() {
  for (const figure of figures.values()) figure.draw();
}

/** Draw everything anew, in the page's language. */
export function restart() {
  for (const figure of figures.values()) figure.destroy();
  figures.clear();
  drawn = { ...drawn, view: null };
  delete parts.strips.dataset.key;
  return refresh();
}

async function run() {
  do {
    again = false;
    running = { controller: new AbortController(), since: performance.now(), view: state.view };
    const since = asked;
    const busy = setTimeout(() => parts.stage.setAttribute("aria-busy", "true"), 150);
    try {
      await ask(running.controller.signal);
      await new Promise((done) => { requestAnimationFrame(done); setTimeout(done, 50); });
      performance.measure("posenc:repaint", { start: since, end: performance.now() });
    } catch (error) {
      if (error.name !== "AbortError") {
        parts.status.className = "error";
        parts.status.textContent = error.message;
      }
    }
    clearTimeout(busy);
  } while (again);
  running = null;
  parts.stage.removeAttribute("aria-busy");
  parts.stage.dataset.drawn = state.view;
  parts.stage.dataset.count = Number(parts.stage.dataset.count || 0) + 1;
}

async function ask(signal) {
  const view = catalogue.views.get(state.view);
  if (!view) return;
  const sides = sidesOf(view);
  const size = sizeOf(view, sides.length);
  if (drawn.view !== view.id) parts.title.textContent = view.title;
  parts.help.textContent = view.help;
  const frames = await Promise.all(sides.map((side) => loadFrame(view.id, queryFor(view, side, size), signal).catch((error) => {
    if (error.name === "AbortError") throw error;
    return { error };
  })));
  if (signal.aborted) return;
  parts.status.textContent = "";
  parts.title.textContent = (sides.length === 1 && !sides[0] && frames[0].header?.counted !== undefined && frames[0].header.subject) || view.title;
  const moved = drawn.view !== view.id;
  drawn = { view: view.id, sides, frames, rows: rowsOf(frames, sides) };
  if (moved) readout(parts, []);
  await lay();
  describe(view, frames, sides);
}

/** Return the number of rows and columns to request: one cell per pixel at most. */
function sizeOf(view, n) {
  const columns = getComputedStyle(parts.panels).gridTemplateColumns.split(" ").length;
  const across = n > 1 && parts.stage.clientWidth > 700 ? Math.max(2, Math.min(3, columns)) : 1;
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  const width = Math.min(1024, Math.max(120, Math.round(((parts.stage.clientWidth - 20 * (across - 1)) / across - 70) * ratio)));
  const upright = view.id === "heat" ? Math.max(240, Math.min(460, width * 0.72)) * ratio : Math.min(width, 620 * ratio);
  return { rows: Math.round(upright), columns: view.id === "heat" ? width : Math.round(upright) };
}

/** Return rows of pictures: one picture or error per side, and the difference if there are two sides. */
function rowsOf(frames, sides) {
  const lists = frames.map((frame) => (frame.error ? null : picturesOf(frame)));
  const n = Math.max(1, ...lists.map((list) => list?.length || 0));
  return Array.from({ length: n }, (_, i) => {
    const cells = sides.map((side, s) => ({ side, picture: lists[s]?.[i] || null, error: i === 0 ? frames[s].error?.message : null }));
    if (sides.length === 2 && lists[0] && lists[1]) {
      const apart = difference(cells[0].picture, cells[1].picture);
      cells.push(typeof apart === "string" ? { side: "D", picture: null, why: apart } : { side: "D", picture: apart });
    }
    return cells;
  });
}

async function lay() {
  const used = new Set();
  const work = [];
  const order = [];
  parts.panels.dataset.across = drawn.sides.length > 1 ? "3" : drawn.rows.length > 1 ? "2" : "1";
  const scales = scalesOf(drawn.rows);
  drawn.rows.forEach((cells, i) => {
    const scale = scales[i];
    for (const { side, picture, error, why } of cells) {
      if (!picture && !error && !why) continue;
      const key = `${i}${side}`;
      used.add(key);
      if (!figures.has(key)) figures.set(key, new Figure(pointers(i)));
      const figure = figures.get(key);
      if (figure.node.parentNode !== parts.panels) parts.panels.append(figure.node);
      order.push(figure.node);
      const who = whoIs(side, isDark());
      if (!picture) figure.fail(error || why, who, error && !(state.view === "attention" && catalogue.target?.kind !== "study") ? "error" : "why");
      else work.push(figure.show(picture, { who, scale: side === "D" ? null : scale, label: labelOf(who, picture) }).catch((problem) => figure.fail(problem.message, who)));
    }
  });
  for (const [key, figure] of figures) {
    if (!used.has(key)) {
      figure.destroy();
      figures.delete(key);
    }
  }
  order.forEach((node, i) => { if (parts.panels.children[i] !== node) parts.panels.insertBefore(node, parts.panels.children[i] || null); });
  await Promise.all(work);
}

/** Return the scale of each row: shared by its sides, and by rows with the same `share`. */
function scalesOf(rows) {
  if (state.scale === "own") return rows.map(() => null);
  const shares = rows.map((cells, i) => cells.find(({ picture }) => picture?.share)?.picture.share ?? i);
  return shares.map((share) => commonScale(rows.filter((_, i) => shares[i] === share)
    .flatMap((cells) => cells.filter(({ side }) => side !== "D").map(({ picture }) => picture))));
}

function labelOf(who, picture) {
  return [who.letter && `${who.letter}: ${who.name}`, picture.title || parts.title.textContent].filter(Boolean).join(", ");
}

function pointers(i) {
  return {
    point: (place) => point(i, place),
    leave: () => {},
    pick: (place) => {
      point(i, place);
      if (!explains(catalogue.views.get(state.view))) return;
      const at = place.row !== undefined ? [place.row, place.column] : [place.series, place.x];
      change({ at: [i, ...at].join(",") }, "at");
      explainCell();
    },
  };
}

/** Mark the same place in every picture of a row, and show the values there. */
function point(i, place) {
  const said = [];
  for (const [key, figure] of figures) {
    if (parseInt(key, 10) !== i) figure.mark(null);
    else if (figure.picture) said.push({ side: key.slice(String(i).length), picture: figure.picture, found: figure.mark(place) });
  }
  readout(parts, said, place);
}

function explainCell() {
  const view = catalogue.views.get(state.view);
  const [i, row, column] = state.at.split(",").map(Number);
  const picture = drawn.rows[i || 0]?.find((cell) => cell.picture)?.picture;
  explain(parts.cell, view, drawn.sides, { row, column, picture }, () => change({ at: "" }, "at"));
}

function describe(view, frames, sides) {
  const many = sides.length > 1;
  const good = frames.map((frame, i) => ({ ...frame, side: many ? `${sides[i]}: ` : "" })).filter(({ header }) => header);
  parts.facts.replaceChildren(...good.flatMap(({ header, side }) => factsOf(header).map(({ label, value, unit }) =>
    el("div", {}, el("dt", {}, side + label), el("dd", {}, value, unit ? el("small", {}, ` ${unit}`) : null)))));
  const notes = new Map();
  for (const { header, side } of good) for (const note of header.notes || []) notes.set(translate(note), [...(notes.get(translate(note)) || []), side]);
  parts.notes.replaceChildren(...[...notes].map(([note, who]) => el("li", {}, (who.length === 1 ? who[0] : "") + note)));
  drawStrips(good.flatMap((frame) => stripsOf(frame)));
  parts.table.replaceChildren(...good.map(({ header }) => tableOf(header)).filter(Boolean).map(drawTable));
  copyBar(parts.copy, { view, sides, frames, figures });
  parts.onFrame(view, good.map(({ header }) => header));
  if (state.at && explains(view)) explainCell();
  else parts.cell.hidden = true;
}

function drawStrips(strips) {
  const key = JSON.stringify([strips, state.model, state.v.layer]);
  if (parts.strips.dataset.key === key) return; // most moves of a slider leave these hundreds of boxes unchanged
  parts.strips.dataset.key = key;
  parts.strips.replaceChildren(...strips.map((strip) =>
    drawStrip(strip, strip.pick && ((i) => setOption("v", strip.pick, i, 0)), Number(state.v[strip.pick] || 0), (i) => holds(strip, i))));
}

/** Return whether a box can be chosen: always with a server; in an exported page only if the file holds its picture. */
function holds({ pick }, i) {
  const view = catalogue.views.get(state.view);
  return canAnswer(`/api/view/${view.id}`, queryFor(view, "", {}, { [pick]: String(i) }));
}

function drawTable({ columns, rows }) {
  const head = el("tr", {}, columns.map((name, i) => el("th", { scope: "col", class: typeof rows[0]?.[i] === "number" ? "figure" : "" }, name)));
  const body = rows.map((row) => el("tr", {}, row.map((value) =>
    el("td", { class: typeof value === "number" ? "figure" : "" }, typeof value === "number" ? say(value) : String(value ?? "")))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": tr("Table") }, el("table", {}, el("thead", {}, head), el("tbody", {}, body)));
}
