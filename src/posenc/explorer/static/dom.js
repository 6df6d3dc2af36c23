// Creating elements and formatting numbers.

import { tr } from "./language.js";

const SVG = "http://www.w3.org/2000/svg";

/** Create an element: attributes by name, `on...` as listeners, `data` as data attributes, then children. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "value" || name === "checked") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });

/** Format a number with four significant digits, thousands separators and a minus sign. */
export function say(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return tr("none");
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  let text;
  if (Number.isInteger(value) && size < 1e9) text = whole.format(value);
  else if (size >= 1e7 || size < 1e-4) text = value.toExponential(digits - 2).replace("e+", "e");
  else if (size >= 1000) text = whole.format(value);
  else text = String(Number(value.toPrecision(digits)));
  return text.replace(/-/g, "−");
}

/** Format a number in few characters, for ticks. */
export function tick(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return say(Number((value / 1e6).toPrecision(3))) + "M";
  if (size >= 1e4) return say(Number((value / 1e3).toPrecision(3))) + "k";
  return say(value, 3);
}

/** Return a label with its unit, as "distance (tokens)". */
export function withUnit(axis = {}) {
  return axis.unit ? tr("{label} ({unit})", axis) : axis.label || "";
}

/** Save text or a blob as a file. */
export function save(name, content, type = "text/plain") {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = el("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** Return the least and the greatest finite number in the arrays, or [0, 0]. */
export function extent(...arrays) {
  let low = Infinity;
  let high = -Infinity;
  for (const array of arrays) {
    for (let i = 0; i < array.length; i++) {
      const value = array[i];
      if (value < low && value > -Infinity) low = value;
      if (value > high && value < Infinity) high = value;
    }
  }
  return low <= high ? [low, high] : [0, 0];
}

/** Return the index of the entry nearest to a value in a sorted array (ascending or descending). */
export function nearest(array, value) {
  let low = 0;
  let high = array.length - 1;
  if (high < 1) return 0;
  const up = array[high] >= array[0];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (array[middle] > value === up) high = middle;
    else low = middle;
  }
  return Math.abs(array[low] - value) <= Math.abs(array[high] - value) ? low : high;
}
