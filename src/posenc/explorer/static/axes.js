// Ticks, labels and the frame around a heat map, as SVG, for the screen and for export.

import { nearest, say, svg, tick, withUnit } from "./dom.js";
import { colours } from "./theme.js";

export const MARGIN = { left: 58, right: 8, top: 8, bottom: 44 };
const FONT = 'system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

/** Return about `count` round tick values as `{value, at}`: `at` is the place in cells, interpolated between `values`. */
export function roundTicks(values, count) {
  const n = values.length;
  if (n <= Math.min(count, 12)) return Array.from(values, (value, at) => ({ value, at }));
  const [first, last] = [values[0], values[n - 1]];
  const step = Math.max(1, niceStep(Math.abs(last - first) / count));
  const found = [];
  for (let value = Math.ceil(first / step) * step; value <= last; value += step) {
    const near = nearest(values, value);
    const i = Math.min(values[near] > value ? near - 1 : near, n - 2);
    found.push({ value, at: i + (value - values[i]) / (values[i + 1] - values[i]) });
  }
  return found;
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= rough) || 10 * power;
}

/** Draw ticks and labels of a heat map of `width` x `height` pixels into an SVG element; replaces its content. */
export function drawAxes(node, { width, height, rows, columns, x, y, rowNames, columnNames }) {
  const ink = colours();
  const { left, top } = MARGIN;
  const small = { columns: namesFit(columnNames, width), rows: Math.min(namesFit(rowNames, height), (1.1 * height) / rows.length) };
  const text = (attributes, words) => svg("text", { "font-family": FONT, "font-size": 11.5, fill: ink.soft, ...attributes }, words);
  const line = (x1, y1, x2, y2) => svg("line", { x1, y1, x2, y2, stroke: ink.line });
  const parts = [svg("rect", { x: left - 0.5, y: top - 0.5, width: width + 1, height: height + 1, fill: "none", stroke: ink.line })];
  for (const { value, at: cell } of ticksOf(columns, small.columns && columnNames, width, 64)) {
    const at = left + ((cell + 0.5) * width) / columns.length;
    parts.push(line(at, top + height, at, top + height + 4));
    parts.push(text({ x: at, y: top + height + 16, "text-anchor": "middle", "font-size": small.columns || 11.5 }, small.columns ? value : tick(value)));
  }
  for (const { value, at: cell } of ticksOf(rows, small.rows && rowNames, height, 44)) {
    const at = top + ((cell + 0.5) * height) / rows.length;
    parts.push(line(left - 4, at, left, at));
    const letter = small.rows && String(value).length < 3; // single characters are centred in their column
    parts.push(text({ x: letter ? left - 11 : left - 7, y: at + (small.rows || 11.5) * 0.36, "text-anchor": letter ? "middle" : "end", "font-size": small.rows || 11.5 }, small.rows ? value : tick(value)));
  }
  parts.push(text({ x: left + width / 2, y: top + height + 36, "text-anchor": "middle" }, withUnit(x)));
  const middle = top + height / 2;
  parts.push(text({ x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, withUnit(y)));
  node.replaceChildren(...parts);
  node.setAttribute("viewBox", `0 0 ${left + width + MARGIN.right} ${top + height + MARGIN.bottom}`);
}

function ticksOf(values, names, pixels, room) {
  if (names) return names.map((value, at) => ({ value, at }));
  return roundTicks(values, Math.max(2, Math.floor(pixels / room)));
}

/** Return the font size at which all names fit next to each other, or 0 if none does and numbers are shown. */
function namesFit(names, pixels) {
  if (!names) return 0;
  const size = Math.min(11.5, (1.35 * pixels) / names.length);
  return size >= 8.5 ? size : 0;
}

/** Return a colour bar with labels for export, as `{parts, height}`; the page builds its own from HTML elements. */
export function drawBar({ y, width, href, words }) {
  const ink = colours();
  const { left } = MARGIN;
  const bar = svg("image", { x: left, y: y + 2, width, height: 8, preserveAspectRatio: "none", href });
  const frame = svg("rect", { x: left - 0.5, y: y + 1.5, width: width + 1, height: 9, fill: "none", stroke: ink.line });
  const [low, zero, high] = words;
  const at = [[low, 0, "start"], [zero, !low ? 0 : !high ? width : width / 2, !low ? "start" : !high ? "end" : "middle"], [high, width, "end"]];
  const said = at.filter(([word]) => word).map(([word, x, anchor]) =>
    svg("text", { x: left + x, y: y + 23, "text-anchor": anchor, "font-family": FONT, "font-size": 11.5, fill: ink.soft }, word));
  return { parts: [bar, frame, ...said], height: 30 };
}

/** Return the labels under a colour bar: its ends and zero. */
export function barWords(low, high) {
  return [low < 0 ? say(low, 3) : "", "0", high > 0 ? say(high, 3) : ""];
}
