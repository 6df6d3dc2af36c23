// Heat maps on a canvas: one pixel per cell, enlarged without smoothing, with axes and a cursor.

import { MARGIN, barWords, drawAxes, drawBar } from "./axes.js";
import { paint } from "./colourmap.js";
import { el, extent, nearest, say, svg } from "./dom.js";
import { tr } from "./language.js";

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** A heat map that can be redrawn. `on.point(place)` and `on.pick(place)` receive the cell's `{row, column}` values. */
export class HeatMap {
  constructor(on) {
    this.canvas = el("canvas", { class: "cells", "aria-hidden": "true" });
    this.axes = svg("svg", { class: "axes", "aria-hidden": "true" });
    this.cursor = el("div", { class: "cross", hidden: true });
    this.area = el("div", {
      class: "heat", tabindex: "0", role: "application", "aria-roledescription": tr("heat map"),
      "aria-keyshortcuts": "ArrowUp ArrowDown ArrowLeft ArrowRight Enter",
    }, this.canvas, this.axes, this.cursor);
    this.bar = el("canvas", { class: "colours", "aria-hidden": "true" });
    this.words = el("div", { class: "bar-words" }, el("span"), el("span"), el("span"));
    this.node = el("div", { class: "heat-box" }, this.area, el("div", { class: "bar" }, this.bar, this.words));
    this.on = on;
    this.place = null;
    this.area.addEventListener("pointermove", (event) => this.#toward(event, on.point));
    this.area.addEventListener("pointerleave", () => on.leave?.());
    this.area.addEventListener("click", (event) => this.#toward(event, on.pick));
    this.area.addEventListener("keydown", (event) => this.#step(event));
  }

  /** Draw a picture; `scale` is the magnitude with the full colour, shared by pictures that are compared. */
  update(picture, arrays, { scale, label }) {
    const { matrix } = picture;
    this.picture = picture;
    this.values = arrays[matrix.array];
    this.rows = arrays[matrix.rows];
    this.columns = arrays[matrix.columns];
    const [low, high] = extent(this.values);
    this.top = scale ?? Math.max(-low, high);
    this.label = label;
    this.area.setAttribute("aria-label", tr("{title}. {y} down, {x} across, values from {low} to {high}. Arrow keys move the cursor, Enter explains a cell.", {
      title: label, y: picture.y?.label || tr("row"), x: picture.x?.label || tr("column"), low: say(low), high: say(high),
    }));
    this.draw(low, high);
  }

  /** Repaint at the current width and in the current colour scheme. */
  draw(low, high) {
    if (!this.values) return;
    if (low !== undefined) this.range = [low, high];
    const room = Math.max(80, Math.floor(this.node.clientWidth - MARGIN.left - MARGIN.right));
    const width = this.#isSquare() ? Math.min(room, 620) : room;
    const height = this.#isSquare() ? width : Math.max(240, Math.min(460, Math.round(width * 0.72)));
    this.size = { width, height };
    for (const [name, value] of Object.entries({ left: MARGIN.left, top: MARGIN.top, width, height })) {
      this.canvas.style[name] = `${value}px`;
    }
    this.area.style.height = this.axes.style.height = `${height + MARGIN.top + MARGIN.bottom}px`;
    this.axes.style.width = `${width + MARGIN.left + MARGIN.right}px`;
    paint(this.canvas, this.values, this.rows.length, this.columns.length, this.top);
    drawAxes(this.axes, this.#layout());
    this.#drawBar();
    this.mark(this.place);
  }

  /** Show the cursor at `{row, column}` values, or hide it. Returns the value there. */
  mark(place) {
    this.place = place;
    const found = place && this.values ? this.#find(place) : null;
    this.cursor.hidden = !found;
    if (!found) return null;
    const { width, height } = this.size;
    const [cellWidth, cellHeight] = [width / this.columns.length, height / this.rows.length];
    const box = {
      left: MARGIN.left + found.column * cellWidth - 2, top: MARGIN.top + found.row * cellHeight - 2,
      width: Math.max(cellWidth, 3) + 4, height: Math.max(cellHeight, 3) + 4,
    };
    for (const [name, value] of Object.entries(box)) this.cursor.style[name] = `${value}px`;
    return this.values[found.row * this.columns.length + found.column];
  }

  /** Return the picture as SVG text, with the cells as an embedded image. */
  toSvg() {
    const { width, height } = this.size;
    const image = svg("image", { x: MARGIN.left, y: MARGIN.top, width, height, preserveAspectRatio: "none", href: this.canvas.toDataURL("image/png") });
    image.style.imageRendering = "pixelated";
    const copy = this.axes.cloneNode(true);
    copy.prepend(image);
    const bar = drawBar({ y: height + MARGIN.top + MARGIN.bottom, width: Math.min(320, width), href: this.bar.toDataURL("image/png"), words: barWords(...this.#ends()) });
    copy.append(...bar.parts);
    const size = { width: width + MARGIN.left + MARGIN.right, height: height + MARGIN.top + MARGIN.bottom + bar.height };
    for (const [name, value] of Object.entries(size)) copy.setAttribute(name, value);
    copy.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
    for (const name of ["class", "style"]) copy.removeAttribute(name);
    return { ...size, text: new XMLSerializer().serializeToString(copy) };
  }

  destroy() {
    this.node.remove();
  }

  #isSquare() {
    const { matrix, x, y } = this.picture;
    const [n_rows, n_columns] = matrix.original_shape || [0, 1];
    return n_rows === n_columns && (x?.unit || "") === (y?.unit || "");
  }

  #layout() {
    const { picture, rows, columns } = this;
    return { ...this.size, rows, columns, x: picture.x, y: picture.y, rowNames: picture.rowNames, columnNames: picture.columnNames };
  }

  #drawBar() {
    const [low, high] = this.#ends();
    const steps = Float32Array.from({ length: 256 }, (_, i) => low + ((high - low) * i) / 255);
    paint(this.bar, steps, 1, 256, this.top);
    barWords(low, high).forEach((words, i) => { this.words.children[i].textContent = words; });
    this.words.dataset.zero = low < 0 && high > 0 ? "middle" : low < 0 ? "right" : "left";
  }

  /** Return the values at the ends of the colour bar. */
  #ends() {
    return [this.range[0] < 0 ? -this.top : 0, this.range[1] > 0 ? this.top : 0];
  }

  #find({ row, column }) {
    return { row: nearest(this.rows, row), column: nearest(this.columns, column) };
  }

  #toward(event, call) {
    if (!this.values) return;
    const box = this.area.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left - MARGIN.left) / this.size.width) * this.columns.length);
    const row = Math.floor(((event.clientY - box.top - MARGIN.top) / this.size.height) * this.rows.length);
    const inside = row >= 0 && column >= 0 && row < this.rows.length && column < this.columns.length;
    if (inside) call({ row: this.rows[row], column: this.columns[column] });
    else if (call === this.on.point) this.on.leave?.();
  }

  #step(event) {
    if (!this.values) return;
    const now = this.#find(this.place || { row: this.rows[0], column: this.columns[0] });
    const go = MOVES[event.key];
    if (go) {
      const far = event.shiftKey ? 10 : 1;
      const row = Math.max(0, Math.min(this.rows.length - 1, now.row + (this.place ? go[0] * far : 0)));
      const column = Math.max(0, Math.min(this.columns.length - 1, now.column + (this.place ? go[1] * far : 0)));
      this.on.point({ row: this.rows[row], column: this.columns[column] });
    } else if (event.key === "Enter" || event.key === " ") this.on.pick({ row: this.rows[now.row], column: this.columns[now.column] });
    else return;
    event.preventDefault();
  }
}
