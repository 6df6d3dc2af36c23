// Reads a frame's header: its pictures (one per group of curves), facts, strips and table.

import { say } from "./dom.js";
import { tr, translate } from "./language.js";

const GROUPS = () => ({
  factor: { title: tr("Frequency divided by") },
  wavelength: { title: tr("Wavelength of each pair"), y: { label: tr("wavelength"), unit: tr("positions"), log: true } },
  turns: { title: tr("Rotations of each pair"), y: { label: tr("rotations"), log: true } },
  "dot product": { title: tr("Dot product"), y: { label: tr("dot product") } },
  cosine: { title: tr("Cosine"), y: { label: tr("cosine") } },
  posenc: { title: tr("posenc: angles in float64"), share: "precision" },
  formula: { title: tr("Most code: angles in the dtype itself"), share: "precision" },
});
const STRIPS = new Set(["fate"]); // groups with a word per pair instead of a curve
const FACTS = () => ({
  encoding: [tr("encoding")], pairing: [tr("pairing")], head_dim: ["head_dim"], rotary_dim: ["rotary_dim"], base: ["base"],
  rope_type: [tr("scaling")], factor: [tr("factor")],
  attention_factor: [tr("gain of q and k")], score_factor: [tr("gain of scores")], original_max_len: [tr("trained length"), tr("tokens")],
  max_len: [tr("longest length"), tr("tokens")], window: [tr("window"), tr("tokens")], phase_error: [tr("phase error")],
  critical_dim: [tr("dimensions that make a full rotation in training")], first_negative: [tr("first negative sum of cosines at"), tr("tokens")],
});
const PARTS = () => ({ rotated: tr("rotated"), all: tr("all") }); // of a fact with several values

const QUIET = new Set(["factor", "attention_factor", "score_factor"]); // not shown if they are 1

/** Return the pictures of a frame in display order; all share its arrays. */
export function picturesOf({ header, arrays }) {
  return [header, ...(header.more || [])].flatMap((about) => {
    const charts = chartsOf(about, arrays);
    const heat = about.matrix ? [heatOf(about, arrays)] : [];
    return about.kind === "matrix" ? [...heat, ...charts] : [...charts, ...heat];
  });
}

function heatOf(about, arrays) {
  const { matrix, title, x, y, tokens } = about;
  const names = tokens && (tokens.length === arrays[matrix.rows].length ? tokens : Array.from(arrays[matrix.rows], (i) => tokens[i]));
  return {
    kind: "matrix", arrays, title: translate(matrix.title || title), matrix, x: axisOf(matrix.x || x), y: axisOf(matrix.y || y), rowNames: names, columnNames: names,
  };
}

function chartsOf(about, arrays) {
  const groups = new Map();
  for (const one of about.series || []) {
    if (!STRIPS.has(one.group)) groups.set(one.group || "", [...(groups.get(one.group || "") || []), one]);
  }
  return [...groups].map(([group, series]) => {
    const known = GROUPS()[group] || {};
    const marks = merged([...(about.marks || []), ...(about.lines || [])].filter((mark) => !mark.group || mark.group === group));
    const y = group === "wavelength" ? axisOf(about.y2) || known.y : known.y || axisOf(about.y);
    const numbered = about.along === undefined ? {} : { number: about.along, path: true };
    return {
      kind: about.kind === "matrix" ? "lines" : about.kind, arrays, x: axisOf(about.x), y, z: axisOf(about.z),
      title: groups.size > 1 ? known.title || group : translate(about.title), share: known.share,
      marks: group === "turns" ? [] : marks, series: series.map((one) => ({ ...numbered, ...one, label: about.methods ? one.label : translate(one.label) })), // methods have names
    };
  });
}

function axisOf(about) {
  return about && { ...about, label: translate(about.label), unit: translate(about.unit) };
}

/** Join marks at the same place into one with both labels. */
function merged(marks) {
  const found = new Map();
  for (const mark of marks.map((one) => ({ ...one, label: translate(one.label) }))) {
    const key = `${mark.x}|${mark.y}`;
    const there = found.get(key);
    found.set(key, there ? { ...there, label: `${there.label}, ${mark.label}` } : mark);
  }
  return [...found.values()];
}

/** Return facts as `{label, value, unit}` with formatted numbers. */
export function factsOf(header) {
  const facts = Array.isArray(header.facts) ? header.facts : Object.entries(header.facts || {}).flatMap(fact);
  return [...facts, ...collisions(header)].map((one) => ({ ...one, value: typeof one.value === "number" ? say(one.value) : String(one.value) }));
}

function fact([name, value]) {
  if (value === null || value === undefined || (value === 1 && QUIET.has(name))) return [];
  const [label, unit] = FACTS()[name] || [name.replaceAll("_", " ")];
  if (typeof value !== "object") return [{ label, unit, value }];
  const labelOf = (part) => tr("{label} ({unit})", { label, unit: PARTS()[part] || part });
  return Object.entries(value).filter(([, inner]) => inner !== null).map(([part, inner]) => ({ label: labelOf(part), value: inner }));
}

function collisions({ collisions: found, searched }) {
  return Object.entries(found || {}).map(([dtype, pair]) => ({
    label: tr("first collision in {dtype}", { dtype }),
    value: pair === null ? tr("none below {n}", { n: say(searched) }) : tr("{a} and {b}", { a: say(pair.same_as), b: say(pair.position) }),
  }));
}

/** Return strips of words as `{title, kinds, nameOf, details, pick}`. */
export function stripsOf({ header, arrays }) {
  const found = [];
  if (header.layers?.length) {
    const { layers } = header;
    found.push({
      title: header.counted === false ? tr("Kinds of layers") : tr("Layers, first to last"), kinds: layers.map(wordOf), pick: "layer",
      nameOf: (i) => tr("layer {i}", { i: layers[i].index ?? i }), details: layers.map((layer) => layer.does || ""),
    });
  }
  const fates = header.fates || ["kept", "blended", "divided"];
  for (const one of (header.series || []).filter(({ group }) => STRIPS.has(group))) {
    const kinds = Array.from(arrays[one.array], (i) => fates[i] ?? "none");
    const named = one.label && one.label !== one.group;
    found.push({ title: named ? one.label : tr("Pairs of dimensions, fastest first"), narrow: named, kinds, nameOf: (i) => tr("pair {i}", { i }) });
  }
  return found;
}

function wordOf({ kind = "", encoding }) {
  if (encoding === "nope") return "NoPE";
  return kind.replace("_attention", "").replaceAll("_", " ") || "full";
}

/** Return a table of a header: its own, or the list of methods. */
export function tableOf(header) {
  if (!header.methods?.length) return null;
  const columns = ["method", "kept", "blended", "divided", "base", "gain", "slow", "slow_kept", "says"].filter((name) => name in header.methods[0]);
  const titles = {
    method: tr("method"), kept: tr("kept"), blended: tr("blended"), divided: tr("divided"), base: "base", gain: tr("gain of q and k"),
    slow: tr("no full rotation in training"), slow_kept: tr("of these, kept"), says: tr("what it does"),
  };
  return { columns: columns.map((name) => titles[name]), rows: header.methods.map((one) => columns.map((name) => (name === "says" ? translate(one.says) : one[name]))) };
}
