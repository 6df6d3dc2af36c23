// Export: Python code, a command line, PNG, SVG, CSV, and the whole page as one file.

import { isExport, packPage, withQuery } from "./api.js";
import { catalogue, fits, queryFor, sectionOf, sidesOf, viewsOf, whoIs } from "./catalogue.js";
import { el, save, svg } from "./dom.js";
import { tr } from "./language.js";
import { writeState } from "./state.js";
import { colours } from "./theme.js";

/** Build the row of export buttons for the pictures that are shown. */
export function copyBar(node, { view, sides, frames, figures }) {
  const codes = frames.map((frame, i) => ({ side: sides[i], ...(frame.header?.code || {}) })).filter(({ python }) => python);
  const said = el("span", { class: "said", role: "status" });
  const report = (words) => {
    said.textContent = words;
    setTimeout(() => { said.textContent = ""; }, 4000);
  };
  const button = (words, act, disabled = false) => el("button", {
    type: "button", disabled, onclick: () => Promise.resolve(act()).then((done) => report(done || ""), (error) => report(error.message)),
  }, words);
  const python = joined(codes, "python", "#");
  const command = [joined(codes.filter(({ command: text }) => !text?.startsWith("posenc explore")), "command", "#"), thisPage()].filter(Boolean).join("\n\n");
  const shown = () => [...figures.values()].filter((figure) => figure.picture);
  const name = (i) => ["posenc", view.id, whoIs(sides[i]).name].filter(Boolean).join("-");
  const csv = frames.map((frame, i) => (frame.error ? null : link(view, sides[i], name(i), sides.length > 1))).filter(Boolean);
  const open = node.querySelector("details")?.open;
  const parts = [
    el("h2", { class: "unseen" }, tr("Copy or save")),
    el("div", { class: "buttons" },
      button(tr("Copy as Python"), () => copy(python, tr("Python copied.")), !python),
      button(tr("Copy as command"), () => copy(command, tr("Command copied."))),
      button("PNG", () => picture(shown(), `${name(0)}.png`, true)),
      button("SVG", () => picture(shown(), `${name(0)}.svg`, false)),
      csv,
      isExport() ? null : button(tr("Page as one file"), () => page(view)),
      said),
    python ? el("details", { open }, el("summary", {}, tr("The same in Python")), el("pre", { tabindex: "0" }, el("code", {}, python))) : null,
  ];
  node.replaceChildren(...parts.filter(Boolean));
}

function link(view, side, name, many) {
  const words = many ? tr("CSV of {side}", { side }) : "CSV";
  if (isExport()) return el("button", { type: "button", disabled: true, title: tr("CSV needs the server; an exported page has none") }, words);
  return el("a", { class: "button", href: withQuery(`/api/csv/${view.id}`, queryFor(view, side)), download: `${name}.csv` }, words);
}

function joined(codes, key, comment) {
  const present = codes.filter((code) => code[key]?.trim());
  if (present.length < 2) return present[0]?.[key].trim() || "";
  return present.map((code) => `${comment} ${code.side}\n${code[key].trim()}`).join("\n\n");
}

/** The command that opens the explorer in this state. A dropped file is left out: only this server holds it. */
function thisPage() {
  const { target } = catalogue;
  const query = new URLSearchParams(writeState());
  if (query.get("model")?.startsWith("file-")) query.delete("model");
  const from = ["study", "file"].includes(target?.kind) || target?.name?.includes(":") ? target.name : "";
  return `# this page\nposenc explore '${from}?${query}'`;
}

async function copy(text, done) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { value: text, class: "unseen" }); // the clipboard API is missing on a page opened from disk
    document.body.append(area);
    area.select();
    const worked = document.execCommand("copy");
    area.remove();
    if (!worked) throw new Error(tr("The browser refuses access to the clipboard. Select and copy the text below instead."));
  }
  return done;
}

/** Save the page, with every view of the current choice, as a file that opens from disk. */
async function page(view) {
  const size = { rows: 400, columns: 400 };
  const section = sectionOf(view);
  const questions = section === "encodings"
    ? sidesOf(view).flatMap((side) => viewsOf(section).filter((one) => fits(whoIs(side).name, one)).map((one) => [one.id, queryFor(one, side, size)]))
    : viewsOf(section).map((one) => [one.id, queryFor(one, "", size)]);
  save("posenc.html", await packPage(catalogue.start, writeState(), questions), "text/html");
  return tr("{file} saved. Open it in any browser; it needs no server.", { file: "posenc.html" });
}

/** Join the pictures into one SVG, in the page's layout, and save it as SVG or PNG. */
async function picture(figures, name, raster) {
  if (!figures.length) throw new Error(tr("There is no picture to save."));
  const drawings = await Promise.all(figures.map((figure) => figure.toSvg()));
  let [width, height, left, top, row] = [0, 0, 0, 0, null];
  const ruler = el("canvas").getContext("2d");
  ruler.font = "14px sans-serif";
  const parts = drawings.map((drawing, i) => {
    const at = figures[i].node.getBoundingClientRect().top;
    if (row !== null && Math.abs(at - row) > 8) [left, top] = [0, height]; // a new row on the page is a new row here
    row = at;
    const [x, y] = [left + 12, top + 12];
    const heading = [...figures[i].caption.children].map((part) => part.textContent.trim()).join(" · ");
    left = Math.ceil(x + Math.max(drawing.width, ruler.measureText(heading).width + 4) + 12);
    [width, height] = [Math.max(width, left), Math.max(height, Math.ceil(y + drawing.height + 38))];
    const words = svg("text", { x: x + 4, y: y + 16, fill: colours().ink, "font-family": "sans-serif", "font-size": 14 }, heading);
    return new XMLSerializer().serializeToString(words) + drawing.text.replace("<svg ", `<svg x="${x}" y="${y + 26}" `);
  });
  const text = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">` +
    `<rect width="100%" height="100%" fill="${colours().paper}"/>${parts.join("")}</svg>`;
  const blob = new Blob([text], { type: "image/svg+xml" });
  save(name, raster ? await toPng(blob, width, height) : blob);
  return tr("{file} saved.", { file: name });
}

async function toPng(blob, width, height) {
  const address = URL.createObjectURL(blob);
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = el("canvas", { width: 2 * width, height: 2 * height });
  const context = canvas.getContext("2d");
  context.scale(2, 2);
  context.drawImage(image, 0, 0);
  URL.revokeObjectURL(address);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
