// One picture with its heading: a heat map, a chart, or a sentence that explains why there is none.

import { HeatMap } from "./canvas.js";
import { Chart } from "./charts.js";
import { el } from "./dom.js";

function heading() {
  return document.getElementById("title").textContent;
}

/** Remove the class's name from a title: the heading shows it already. */
function shorter(title, { cls }) {
  if (!cls || !title.startsWith(cls)) return title;
  const rest = title.slice(cls.length).replace(/^(：|:? )/, "");
  return rest.slice(0, 1).toUpperCase() + rest.slice(1);
}

/** A place for one picture, reused while its numbers change. */
export class Figure {
  constructor(on) {
    this.on = on;
    this.caption = el("figcaption");
    this.body = el("div", { class: "figure-body" });
    this.node = el("figure", { class: "picture" }, this.caption, this.body);
    this.part = null;
  }

  /** Draw a picture. `who` is `{letter, name, colour}`. */
  async show(picture, { who, scale, label }) {
    const Kind = picture.kind === "matrix" ? HeatMap : Chart;
    this.#head(who, picture.title === heading() ? "" : shorter(picture.title || "", who));
    if (!(this.part instanceof Kind)) {
      this.part?.destroy();
      this.part = new Kind(this.on);
      this.body.replaceChildren(this.part.node);
    } else if (this.part.node.parentNode !== this.body) this.body.replaceChildren(this.part.node);
    this.picture = picture;
    await this.part.update(picture, picture.arrays, { scale, label, colour: who.colour });
  }

  /** Show a sentence in the place of the picture. */
  fail(sentence, who, kind = "error") {
    this.#head(who, "");
    this.picture = null;
    this.body.replaceChildren(el("p", { class: kind, role: kind === "error" ? "alert" : undefined }, sentence));
  }

  /** Show the cursor; returns the value there: a number, or a list of `{label, value}`. */
  mark(place) {
    if (!this.picture || !this.part) return null;
    return this.part.mark(place);
  }

  draw() {
    if (this.picture) this.part.draw();
  }

  toSvg() {
    return this.picture ? this.part.toSvg() : null;
  }

  destroy() {
    this.part?.destroy();
    this.node.remove();
  }

  #head(who, title) {
    const key = `${who.letter}|${who.name}|${title}|${who.colour}`;
    if (this.headed === key) return;
    this.headed = key;
    const swatch = who.letter ? el("span", { class: "letter" }, who.letter) : null;
    if (swatch && who.colour) swatch.style.borderColor = who.colour;
    this.caption.replaceChildren(...[swatch, who.name ? el("b", {}, who.name) : null, title ? el("span", { class: "soft" }, title) : null].filter(Boolean));
  }
}
