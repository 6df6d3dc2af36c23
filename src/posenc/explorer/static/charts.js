// Lines, bars and points drawn by plotly, with our own cursor on top; the cursors of a row move together.

import { el, extent, nearest, say, svg, withUnit } from "./dom.js";
import { tr } from "./language.js";
import { loadPlotly } from "./loader.js";
import { layout, legendOf, traces } from "./traces.js";

const CONFIG = { displayModeBar: false, displaylogo: false, responsive: false, doubleClick: "reset", showTips: false };

/** A chart that can be redrawn. `on.point({x, series})` and `on.pick({x, series})` receive the place under the cursor. */
export class Chart {
  constructor(on) {
    this.plot = el("div", { class: "plot", "aria-hidden": "true" });
    this.line = el("div", { class: "cursor-line", hidden: true });
    this.dots = el("div", { class: "cursor-dots" });
    this.area = el("div", {
      class: "chart", tabindex: "0", role: "application", "aria-roledescription": tr("chart"), "aria-keyshortcuts": "ArrowLeft ArrowRight Enter",
    }, this.plot, this.line, this.dots);
    this.legend = el("ul", { class: "legend", "aria-hidden": "true" });
    this.node = el("div", { class: "chart-box" }, this.area, this.legend);
    this.on = on;
    this.place = null;
    this.area.addEventListener("pointermove", (event) => this.#toward(event, on.point));
    this.area.addEventListener("pointerleave", () => on.leave?.());
    this.area.addEventListener("pointerdown", (event) => { this.pressed = [event.clientX, event.clientY]; });
    this.area.addEventListener("click", (event) => {
      const [x, y] = this.pressed || [0, 0];
      if (Math.hypot(event.clientX - x, event.clientY - y) < 4) this.#toward(event, on.pick); // a longer drag is a zoom
    });
    this.area.addEventListener("keydown", (event) => this.#step(event));
  }

  /** Draw a picture; `scale` is the common range of the y axis. */
  async update(picture, arrays, { scale, label, colour }) {
    Object.assign(this, { picture, arrays, scale, label, colour });
    this.grid = picture.series.length ? this.#grid() : new Float32Array(0);
    this.area.setAttribute("aria-label", this.#describe());
    this.plotly ??= await loadPlotly();
    return this.draw();
  }

  /** Redraw at the current width and in the current colour scheme. */
  async draw() {
    if (!this.plotly || !this.picture) return;
    const width = Math.max(200, Math.floor(this.node.clientWidth) - 2);
    const height = this.picture.kind === "points" ? Math.min(width, 520) : Math.max(240, Math.min(380, Math.round(width * 0.62)));
    const given = traces(this.picture, this.arrays, { colour: this.colour, pixels: width });
    const shape = layout(this.picture, this.arrays, { width, height, range: this.scale });
    this.#drawLegend();
    this.area.style.height = `${height}px`;
    await this.plotly.react(this.plot, given, shape, CONFIG);
    this.mark(this.place);
  }

  /** Show the cursor at `{x}`, or hide it. Returns the value of each series there, as `{label, value}`. */
  mark(place) {
    this.place = place;
    const axes = this.plot._fullLayout;
    const shown = place && place.x !== undefined && axes?.xaxis?._length && !axes.scene;
    this.line.hidden = !shown || this.picture.kind === "points";
    this.dots.replaceChildren();
    if (!place || !this.picture || place.x === undefined) return [];
    const found = this.picture.series.map((one) => this.#at(one, place.x));
    if (shown) this.#drawCursor(found, axes.xaxis, axes.yaxis);
    return found;
  }

  /** Return the chart as SVG text. It is never parsed here: the page's policy would remove its styles. */
  async toSvg() {
    const { data, layout: shape } = this.plot;
    const named = this.picture.series.length > 1;
    const width = shape.width + (named ? 170 : 0);
    const sheet = { ...shape, width, showlegend: named, margin: { ...shape.margin, r: shape.margin.r + (named ? 170 : 0) } };
    const address = await this.plotly.toImage({ data, layout: sheet }, { format: "svg", width, height: shape.height });
    return { width, height: shape.height, text: decodeURIComponent(address.slice(address.indexOf(",") + 1)) };
  }

  destroy() {
    if (this.plotly) this.plotly.purge(this.plot);
    this.node.remove();
  }

  #drawLegend() {
    this.legend.replaceChildren(...legendOf(this.picture, this.colour).map(({ label, color, dash }) => {
      const dashes = { solid: null, dash: "5 3", dot: "1.5 2", dashdot: "6 2 1.5 2" }[dash];
      const line = svg("line", { x1: 0, x2: 24, y1: 5, y2: 5, stroke: color, "stroke-width": 2.2, "stroke-dasharray": dashes });
      return el("li", {}, svg("svg", { width: 24, height: 10, viewBox: "0 0 24 10" }, line), label);
    }));
  }

  #grid() {
    const one = this.picture.series[0];
    return this.arrays[this.picture.kind === "points" && one.number !== undefined ? one.number : one.x];
  }

  #at(one, x) {
    const keys = this.picture.kind === "points" && one.number !== undefined ? this.arrays[one.number] : this.arrays[one.x];
    const i = nearest(keys, x);
    return { label: one.label || "", x: keys[i], value: this.arrays[one.array][i], across: this.arrays[one.x][i], i };
  }

  #drawCursor(found, xaxis, yaxis) {
    const put = (axis, value) => axis._offset + axis.l2p(axis.type === "log" ? Math.log10(value) : value);
    const inside = (axis, at) => at >= axis._offset - 1 && at <= axis._offset + axis._length + 1;
    const left = put(xaxis, xaxis.type === "category" ? found[0].i : found[0].across);
    if (!inside(xaxis, left)) this.line.hidden = true;
    Object.assign(this.line.style, { left: `${left}px`, top: `${yaxis._offset}px`, height: `${yaxis._length}px` });
    for (const { value, across } of found.slice(0, 24)) {
      const [x, y] = [xaxis.type === "category" ? left : put(xaxis, across), put(yaxis, value)];
      if (!Number.isFinite(y) || !inside(yaxis, y) || !inside(xaxis, x)) continue;
      const dot = el("span");
      Object.assign(dot.style, { left: `${x}px`, top: `${y}px` });
      this.dots.append(dot);
    }
  }

  #toward(event, call) {
    const axes = this.plot._fullLayout;
    if (!axes?.xaxis?._length || axes.scene || !this.picture.series.length) return;
    const box = this.area.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    if (left < axes.xaxis._offset || left > axes.xaxis._offset + axes.xaxis._length) return;
    if (this.picture.kind === "points") return this.#towardPoint(left, top, axes, call);
    const along = axes.xaxis.p2l(left - axes.xaxis._offset);
    const x = axes.xaxis.type === "category" ? this.grid[Math.round(along)] : this.grid[nearest(this.grid, axes.xaxis.type === "log" ? 10 ** along : along)];
    call({ x, series: this.#closest(x, top, axes.yaxis) });
  }

  #towardPoint(left, top, { xaxis, yaxis }, call) {
    let best = Infinity;
    let place = null;
    this.picture.series.forEach((one, series) => {
      const [xs, ys] = [this.arrays[one.x], this.arrays[one.array]];
      for (let i = 0; i < xs.length; i++) {
        const away = (xaxis._offset + xaxis.l2p(xs[i]) - left) ** 2 + (yaxis._offset + yaxis.l2p(ys[i]) - top) ** 2;
        if (away < best) [best, place] = [away, { x: one.number !== undefined ? this.arrays[one.number][i] : xs[i], series }];
      }
    });
    if (place && best < 3600) call(place);
  }

  #closest(x, top, yaxis) {
    const away = this.picture.series.map((one) => {
      const { value } = this.#at(one, x);
      return Math.abs(yaxis._offset + yaxis.l2p(yaxis.type === "log" ? Math.log10(value) : value) - top);
    });
    return Math.max(0, away.indexOf(Math.min(...away)));
  }

  #step(event) {
    if (!this.grid?.length) return;
    const now = this.place ? nearest(this.grid, this.place.x) : -1;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) {
      const next = now < 0 ? 0 : Math.max(0, Math.min(this.grid.length - 1, now + step * (event.shiftKey ? 10 : 1)));
      this.on.point({ x: this.grid[next], series: this.place?.series ?? 0 });
    } else if (event.key === "Enter" || event.key === " ") this.on.pick({ x: this.grid[Math.max(0, now)], series: this.place?.series ?? 0 });
    else return;
    event.preventDefault();
  }

  #describe() {
    const { picture, arrays } = this;
    if (!picture.series.length) return this.label;
    const [left, right] = extent(...picture.series.map((one) => arrays[one.x]));
    const lines = picture.series.slice(0, 6).map((one) => {
      const [low, high] = extent(arrays[one.array]);
      return tr("{label} from {low} to {high}", { label: one.label || tr("values"), low: say(low), high: say(high) });
    });
    const more = picture.series.length > 6 ? `, ${tr("and {n} more", { n: picture.series.length - 6 })}` : "";
    return tr("{title}. {y} over {x} {left} to {right}: {lines}. Arrow keys move the cursor.", {
      title: this.label, y: withUnit(picture.y), x: withUnit(picture.x), left: say(left), right: say(right), lines: lines.join("; ") + more,
    });
  }
}
