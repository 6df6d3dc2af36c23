// The values under the cursor: shown at once, and announced to screen readers when the cursor rests.

import { whoIs } from "./catalogue.js";
import { el, say } from "./dom.js";
import { tr } from "./language.js";
import { isDark } from "./theme.js";

const REST = 350; // ms
const MOST = 8; // curves of a chart that are listed

/** Show the values at a place, one entry per picture. */
export function readout(parts, said, place) {
  clearTimeout(parts.rest);
  if (!said.length) {
    parts.read.replaceChildren(el("p", { class: "hint" }, tr("Point at a picture, or move the cursor in it with the arrow keys.")));
    return;
  }
  const [first] = said;
  const where = first.picture.kind === "matrix" ? whereIn(first.picture, place) : whereOn(first);
  const values = said.map(({ side, found, picture }) => {
    const who = whoIs(side, isDark());
    const key = el("b", {}, who.letter || "");
    if (who.colour) key.style.color = who.colour;
    return el("span", { class: "value" }, who.letter ? key : null, " ", el("span", {}, words(found, picture)));
  });
  parts.read.replaceChildren(el("p", {}, el("span", { class: "where" }, where), " ", values.flatMap((value) => [value, " "])));
  parts.rest = setTimeout(() => { parts.live.textContent = parts.read.textContent; }, REST);
}

function whereIn({ x, y, rowNames, columnNames }, { row, column }) {
  const name = (axis, names, value) => `${axis?.label || ""} ${names?.[value] !== undefined ? `${value} “${names[value]}”` : say(value)}`;
  return `${name(y, rowNames, row)}, ${name(x, columnNames, column)}`;
}

function whereOn({ picture, found }) {
  if (!found?.length) return "";
  if (picture.kind === "points") return `${tr("position")} ${say(found[0].x)}`;
  const name = picture.x?.labels?.[found[0].i];
  return `${picture.x?.label || ""} ${name ?? say(found[0].x)}${picture.x?.unit && !name ? ` ${picture.x.unit}` : ""}`;
}

function words(found, picture) {
  if (typeof found === "number") return say(found);
  if (!found?.length) return tr("outside");
  if (picture.kind === "points") return found.map(({ across, value }) => `(${say(across, 3)}, ${say(value, 3)})`).join("  ");
  const shown = found.slice(0, MOST).map(({ label, value }) => (found.length > 1 ? `${label} ${say(value)}` : say(value)));
  return shown.join("   ") + (found.length > MOST ? `   ${tr("and {n} more", { n: found.length - MOST })}` : "");
}
