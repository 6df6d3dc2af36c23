// Rows of small boxes: a model's layers, or what an extension does to each pair of dimensions. Letters repeat the colours.

import { el } from "./dom.js";
import { tr, translate } from "./language.js";

const LETTERS = { full: "F", sliding: "S", chunked: "C", nope: "N", linear: "L", kept: "K", blended: "B", divided: "D" };

const WORDS = () => ({
  full: tr("full"), sliding: tr("sliding"), chunked: tr("chunked"), kept: tr("kept"), blended: tr("blended"), divided: tr("divided"), none: tr("none"),
});

/** Draw a strip `{title, kinds, nameOf, details}`. A click on box i calls `pick(i)`, if given; boxes without `can(i)` are disabled. */
export function drawStrip({ title, narrow, kinds, nameOf, details }, pick, chosen, can) {
  const counts = new Map();
  for (const kind of kinds) counts.set(kind, (counts.get(kind) || 0) + 1);
  const boxes = kinds.map((kind, i) => {
    const label = `${nameOf(i)}: ${details?.[i] ? translate(details[i]) : wordOf(kind)}`;
    const shared = { data: { kind: family(kind) }, title: label };
    if (!pick) return el("li", shared, el("span", { "aria-hidden": "true" }, letterOf(kind)), el("span", { class: "unseen" }, label));
    return el("li", {}, el("button", { type: "button", ...shared, "aria-label": label, "aria-pressed": String(i === chosen), disabled: !can(i), onclick: () => pick(i) }, letterOf(kind)));
  });
  const legend = [...counts].map(([kind, n]) => el("span", { class: "key" },
    el("i", { data: { kind: family(kind) }, "aria-hidden": "true" }, letterOf(kind)), `${wordOf(kind)} ${n}`));
  const list = el("ol", { "aria-label": title }, boxes);
  list.style.setProperty("--n", Math.min(kinds.length, 64));
  list.style.setProperty("--middle", Math.min(kinds.length, 32));
  list.style.setProperty("--narrow", Math.min(kinds.length, 24));
  return el("figure", { class: narrow ? "strip narrow" : "strip" }, el("figcaption", {}, title, el("span", { class: "keys" }, legend)), list);
}

function family(kind) {
  return Object.keys(LETTERS).find((word) => kind.toLowerCase().includes(word)) || "other";
}

function wordOf(kind) {
  return WORDS()[kind] || kind;
}

function letterOf(kind) {
  return LETTERS[family(kind)] || kind.slice(0, 1).toUpperCase();
}
