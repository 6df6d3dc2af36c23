// Maps numbers to colours: blue below zero, red above, the background at zero. Colour-blind readers can distinguish them.

import { isDark } from "./theme.js";

const LIGHT = [[33, 102, 172], [103, 169, 207], [247, 247, 247], [239, 138, 98], [178, 24, 43]];
const DARK = [[126, 190, 255], [52, 108, 168], [30, 33, 39], [176, 70, 58], [255, 146, 122]];
const STEPS = 512;
const tables = {};

/** Return 2 * STEPS + 1 packed colours from the most negative to the most positive. */
function table() {
  const name = isDark() ? "dark" : "light";
  if (tables[name]) return tables[name];
  const stops = isDark() ? DARK : LIGHT;
  const colours = new Uint32Array(2 * STEPS + 1);
  for (let i = 0; i < colours.length; i++) {
    const place = (i / (2 * STEPS)) * (stops.length - 1);
    const from = Math.min(Math.floor(place), stops.length - 2);
    const [r, g, b] = stops[from].map((start, c) => Math.round(start + (stops[from + 1][c] - start) * (place - from)));
    colours[i] = (255 << 24) | (b << 16) | (g << 8) | r; // typed arrays are little-endian on every platform with a browser
  }
  tables[name] = colours;
  return colours;
}

/** Paint values into a canvas, one pixel per cell; `top` is the magnitude with the full colour. Non-finite values stay empty. */
export function paint(canvas, values, n_rows, n_columns, top) {
  if (canvas.width !== n_columns || canvas.height !== n_rows) Object.assign(canvas, { width: n_columns, height: n_rows });
  const image = new ImageData(n_columns, n_rows);
  const pixels = new Uint32Array(image.data.buffer);
  const colours = table();
  const factor = top > 0 ? STEPS / top : 0;
  for (let i = 0; i < pixels.length; i++) {
    const value = values[i];
    if (value - value !== 0) continue;
    pixels[i] = colours[Math.max(0, Math.min(2 * STEPS, Math.round(value * factor) + STEPS))];
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Mix two colours `#rrggbb` or `rgb(...)`; share 0 gives the first. */
export function mix(one, other, share) {
  const [a, b] = [numbers(one), numbers(other)];
  return `rgb(${a.map((value, i) => Math.round(value + (b[i] - value) * share)).join(", ")})`;
}

/** Return a colour with the given opacity, from 0 to 1. */
export function veil(colour, opacity) {
  return `rgba(${numbers(colour).join(", ")}, ${opacity})`;
}

function numbers(colour) {
  if (colour.startsWith("#")) return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  return colour.match(/[\d.]+/g).slice(0, 3).map(Number);
}
