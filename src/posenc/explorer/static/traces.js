// Traces, axes and reference lines for plotly, in the page's style.

import { catalogue } from "./catalogue.js";
import { mix, veil } from "./colourmap.js";
import { extent, say, tick, withUnit } from "./dom.js";
import { tr } from "./language.js";
import { colours, isDark } from "./theme.js";

const DASHES = ["solid", "dash", "dot", "dashdot"];
const APART = {
  light: ["#0072b2", "#d55e00", "#00805d", "#a8449b", "#85700b", "#3b2d97", "#c2475f", "#3d4043"],
  dark: ["#4ba7ea", "#ff8536", "#2ec498", "#dc8ad0", "#c4ad45", "#a99df5", "#f48c9b", "#d6d6d6"],
};
const MOST_DOTS = 600; // above this only the line is drawn: each dot is an SVG element
const FONT = 'system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

/** Return the traces of a picture. `colour` is the encoding's; lines are thinned to `pixels` columns. */
export function traces(picture, arrays, { colour, pixels }) {
  const { series, kind } = picture;
  const painted = series.map((one, i) => look(one, i, series.length, colour, picture));
  const banded = (one) => one.low !== undefined && one.low !== null;
  const behind = series.flatMap((one, i) => (banded(one) ? band(one, arrays, veil(painted[i].color, series.length > 4 ? 0.09 : 0.2), pixels) : []));
  const lines = series.flatMap((one, i) => {
    const x = arrays[one.x];
    const y = arrays[one.array];
    const name = plain(one.label || "");
    const { color, dash } = painted[i];
    const common = { name, hoverinfo: "skip", showlegend: true };
    if (kind === "bars") return [{ ...common, type: "bar", x: picture.x?.labels?.map(plain) ?? x, y, marker: { color } }];
    if (kind === "points") return [points(one, arrays, { ...common, color })];
    const line = { color, width: series.length > 12 ? 1.1 : 1.8, dash };
    const mode = one.points || x.length === 1 ? "lines+markers" : "lines";
    return [{ ...common, type: "scatter", mode, ...thin(x, y, pixels), line, marker: { size: 5, color }, connectgaps: false }];
  });
  return [...behind, ...lines]; // all lines are drawn over all bands
}

function points(one, arrays, { color, ...common }) {
  const numbers = one.number !== undefined ? arrays[one.number] : null;
  const many = arrays[one.x].length > MOST_DOTS && one.path;
  const flat = { ...common, x: arrays[one.x], y: arrays[one.array], mode: many ? "lines" : one.path ? "lines+markers" : "markers" };
  flat.marker = { size: 6, color: numbers || color, colorscale: [[0, mix(color, colours().paper, 0.72)], [1, color]], line: { width: 0 } };
  flat.line = { color: mix(color, colours().paper, many ? 0.3 : 0.6), width: many ? 0.6 : 1 };
  if (one.z !== undefined && one.z !== null) return { ...flat, type: "scatter3d", z: arrays[one.z], marker: { ...flat.marker, size: 3 } };
  return { ...flat, type: "scatter" };
}

function band(one, arrays, fillcolor, pixels) {
  const base = { type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false, line: { width: 0 } };
  const x = arrays[one.x];
  return [
    { ...base, ...thin(x, arrays[one.low], pixels) },
    { ...base, ...thin(x, arrays[one.high], pixels), fill: "tonexty", fillcolor },
  ];
}

/** Return the legend entry of each series: label, colour and dash. */
export function legendOf(picture, colour) {
  if (picture.series.length < 2) return [];
  return picture.series.map((one, i) => ({ label: one.label || tr("line {i}", { i }), ...look(one, i, picture.series.length, colour, picture) }));
}

/** Return the colour and dash of a series: its own, a shade of the encoding's, or one from a list of distinct colours. */
function look(one, i, count, colour, picture) {
  if (one.colour) return { color: isDark() ? one.colour_dark || one.colour : one.colour, dash: DASHES[0] };
  const many = count > 1;
  const named = catalogue.encodings.get(one.label); // a line named after an encoding has the encoding's colour
  if (named) return { color: isDark() ? named.colour_dark : named.colour, dash: DASHES[i % DASHES.length] };
  if (colour && !picture.apart) {
    const { paper, ink } = colours();
    const place = many ? i / (count - 1) : 0;
    const color = !many ? colour : place < 0.5 ? mix(colour, ink, 0.5 - place) : mix(colour, paper, (place - 0.5) * 0.9);
    return { color, dash: count <= 4 ? DASHES[i] : DASHES[0] };
  }
  const list = APART[isDark() ? "dark" : "light"];
  return { color: list[i % list.length], dash: DASHES[(count <= 4 ? i : Math.floor(i / list.length)) % DASHES.length] };
}

/** Return a line with at most four points per pixel column: first, least, greatest and last. */
export function thin(x, y, pixels) {
  const n = x.length;
  if (n <= 4 * pixels) return { x, y };
  const [keptX, keptY] = [[], []];
  const keep = (i) => { keptX.push(x[i]); keptY.push(y[i]); };
  for (let column = 0; column < pixels; column++) {
    const from = Math.floor((column * n) / pixels);
    const to = Math.floor(((column + 1) * n) / pixels);
    let [least, greatest] = [from, from];
    for (let i = from; i < to; i++) {
      if (y[i] < y[least]) least = i;
      if (y[i] > y[greatest]) greatest = i;
    }
    for (const i of [...new Set([from, least, greatest, to - 1])].sort((a, b) => a - b)) keep(i);
  }
  return { x: keptX, y: keptY };
}

/** Return the layout of a chart of a given size; `range` is the common range of the y axis, or null. */
export function layout(picture, arrays, { width, height, range }) {
  const ink = colours();
  const axis = (about = {}, values = [], room = width) => ({
    title: { text: titleOf(about, room), standoff: 8, font: { size: 12, color: ink.soft } },
    type: about.log ? "log" : "linear", gridcolor: ink.hair, linecolor: ink.line, zerolinecolor: ink.line, tickcolor: ink.line,
    ticks: "outside", ticklen: 4, tickfont: { size: 11.5, color: ink.soft }, showline: true, automargin: true,
    exponentformat: "none", separatethousands: true, ...(about.log ? decades(values) : {}),
  });
  const along = picture.series.map((one) => arrays[one.x]);
  const upright = range ? [range] : picture.series.map((one) => arrays[one.array]);
  const solid = picture.series?.some((one) => one.z !== undefined && one.z !== null);
  const made = {
    width, height, autosize: false, margin: { l: 62, r: 14, t: 10, b: 46 }, hovermode: false, dragmode: solid ? "orbit" : "zoom",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: FONT, color: ink.ink, size: 12 }, separators: ".,",
    showlegend: false, legend: { font: { size: 11.5, color: ink.soft }, traceorder: "normal" },
    xaxis: axis(picture.x, along), yaxis: axis(picture.y, upright, height), bargap: 0.15, ...references(picture, arrays, ink),
  };
  if (picture.x?.labels) made.xaxis.type = "category";
  if (range) made.yaxis.range = picture.y?.log ? range.map((value) => Math.log10(value)) : range;
  if (picture.kind === "points" && !solid && picture.equal !== false) {
    Object.assign(made.yaxis, { scaleanchor: "x", scaleratio: 1, constrain: "domain" });
    made.xaxis.constrain = "domain"; // keeps the plot square instead of wide with empty sides
  }
  if (solid) {
    const deep = (about) => ({ title: { text: plain(withUnit(about)) }, gridcolor: ink.line, color: ink.soft, backgroundcolor: ink.paper });
    made.scene = { xaxis: deep(picture.x), yaxis: deep(picture.y), zaxis: deep(picture.z || { label: "" }) };
  }
  return made;
}

/** Return an axis title, on two lines if one would be longer than the axis. */
function titleOf(about, room) {
  const whole = plain(withUnit(about));
  if (!about.unit || whole.length * 6.4 < room - 70) return whole;
  return `${plain(about.label)}<br>${plain(about.unit)}`;
}

/** Return ticks at powers of ten as plain text: plotly's own superscripts need style attributes, which the policy forbids. */
function decades(values) {
  const [low, high] = extent(...values.map((array) => array.filter((value) => value > 0)));
  if (!(low > 0)) return {};
  const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const every = Math.ceil((to - from) / 8);
  let tickvals = Array.from({ length: to - from + 1 }, (_, i) => from + i).filter((power) => power % every === 0).map((power) => 10 ** power);
  if (to - from <= 1) tickvals = [1, 2, 5].flatMap((m) => [m * 10 ** from, m * 10 ** to]).sort((a, b) => a - b);
  return { tickmode: "array", tickvals, ticktext: tickvals.map((value) => (value < 1e-3 || value > 9e6 ? power(value) : value < 1e4 ? say(value) : tick(value))) };
}

function power(value) {
  const exponent = Math.floor(Math.log10(value) + 1e-9);
  const first = Math.round(value / 10 ** exponent);
  const raised = String(exponent).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
  return `${first === 1 ? "" : `${first}·`}10${raised}`;
}

function references(picture, arrays, ink) {
  const shapes = [];
  const annotations = [];
  const [logX, logY] = [picture.x?.log, picture.y?.log];
  const [left, right] = picture.series.length ? extent(...picture.series.map((one) => arrays[one.x])) : [0, 0];
  for (const mark of picture.marks || []) {
    const line = { color: ink.soft, width: 1, dash: "dot" };
    const said = { text: plain(mark.label || ""), showarrow: false, font: { size: 11, color: ink.soft }, bgcolor: "rgba(0,0,0,0)" };
    if (mark.x !== undefined && mark.x !== null) {
      const late = (logX ? Math.log(mark.x / Math.max(left, 1)) / Math.log(right / Math.max(left, 1)) : (mark.x - left) / (right - left)) > 0.6;
      shapes.push({ type: "line", x0: mark.x, x1: mark.x, yref: "paper", y0: 0, y1: 1, line });
      annotations.push({ ...said, x: logX ? Math.log10(mark.x) : mark.x, yref: "paper", y: 1, yanchor: "top", xanchor: late ? "right" : "left", xshift: late ? -3 : 3 });
    } else if (mark.y !== undefined && mark.y !== null) {
      shapes.push({ type: "line", y0: mark.y, y1: mark.y, xref: "paper", x0: 0, x1: 1, line });
      annotations.push({ ...said, y: logY ? Math.log10(mark.y) : mark.y, xref: "paper", x: 0, xshift: 4, xanchor: "left", yanchor: "bottom" });
    }
  }
  return { shapes, annotations };
}

/** Escape text for plotly, which interprets tags and entities in labels. */
function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}
