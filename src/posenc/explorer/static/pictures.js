// The difference of two pictures, and the scale that they share. Subtraction is the page's only arithmetic on results.

import { extent } from "./dom.js";
import { tr } from "./language.js";

/** Return B minus A as a picture, or a sentence with the reason if there is none. */
export function difference(one, other) {
  if (!one || !other) return tr("No difference: there is no second picture to compare with.");
  if ((one.kind === "matrix") !== (other.kind === "matrix")) return tr("No difference: the two pictures are of different kinds.");
  return one.kind === "matrix" ? matrixDifference(one, other) : seriesDifference(one, other);
}

function matrixDifference(one, other) {
  const [a, b] = [one, other].map(({ matrix, arrays }) => [arrays[matrix.array], arrays[matrix.rows], arrays[matrix.columns]]);
  if (!same(a[1], b[1]) || !same(a[2], b[2])) {
    return tr("No difference: A has {a} cells and B has {b}, or they stand for different rows or columns. Give both the same width and length.", {
      a: `${a[1].length} × ${a[2].length}`, b: `${b[1].length} × ${b[2].length}`,
    });
  }
  const arrays = [b[0].map((value, i) => value - a[0][i]), a[1], a[2]];
  return { ...one, share: undefined, arrays, matrix: { array: 0, rows: 1, columns: 2, original_shape: one.matrix.original_shape }, title: "" };
}

function seriesDifference(one, other) {
  if (one.kind === "points") return tr("No difference: points in the plane are compared side by side.");
  const n = Math.max(one.series.length, other.series.length);
  const fits = one.series.length === other.series.length || one.series.length === 1 || other.series.length === 1;
  if (!fits) return tr("No difference: A has {a} lines and B {b}.", { a: one.series.length, b: other.series.length });
  const arrays = [];
  const series = [];
  for (let i = 0; i < n; i++) {
    const [a, b] = [one, other].map((picture) => picture.series[picture.series.length === 1 ? 0 : i]);
    const [ax, bx] = [one.arrays[a.x], other.arrays[b.x]];
    if (!same(ax, bx)) return tr("No difference: the two lines have different x values. Give both the same width and length.");
    const ay = one.arrays[a.array];
    series.push({ label: (one.series.length >= other.series.length ? a : b).label, x: arrays.length, array: arrays.length + 1 });
    arrays.push(ax, other.arrays[b.array].map((value, j) => value - ay[j]));
  }
  return { kind: one.kind, title: "", x: one.x, y: { label: tr("{label}: B − A", { label: one.y?.label || "" }), unit: one.y?.unit }, series, arrays };
}

/** Return the common scale of pictures: a range of the y axis, or for heat maps the magnitude with the full colour. */
export function commonScale(list) {
  const pictures = list.filter(Boolean);
  if (!pictures.length || pictures.some(({ kind }) => (kind === "matrix") !== (pictures[0].kind === "matrix"))) return null;
  if (pictures[0].kind === "matrix") {
    return Math.max(...pictures.map(({ arrays, matrix }) => Math.max(...extent(arrays[matrix.array]).map(Math.abs))));
  }
  if (pictures.length < 2 || pictures[0].kind === "points") return null;
  const values = pictures.flatMap(({ arrays, series }) =>
    series.flatMap((one) => [one.array, one.low, one.high].filter((i) => i !== undefined && i !== null).map((i) => arrays[i])));
  const log = pictures[0].y?.log;
  const [low, high] = extent(...(log ? values.map((array) => array.filter((value) => value > 0)) : values));
  if (log) return [low / 1.3, high * 1.3];
  const room = (high - low || Math.abs(high) || 1) * 0.05;
  return [low - room, high + room];
}

function same(one, other) {
  return one.length === other.length && one.every((value, i) => value === other[i]);
}
