// The list of models, with a search, and a drop zone for a config.json or a checkpoint. Only a checkpoint's header is sent.

import { inspectModel, isExport } from "./api.js";
import { catalogue, viewsOf } from "./catalogue.js";
import { el, say } from "./dom.js";
import { viewOptions } from "./encodings.js";
import { tr, translate } from "./language.js";
import { change, state } from "./state.js";

const MOST = 1 << 20; // bytes: the server's limit for an upload
const own = []; // models read from files, latest first

/** Fill the panel with the list of models and return the function that updates it. */
export function modelsPanel(panel) {
  const search = el("input", { type: "search", id: "model-search", placeholder: "llama, 131072, qwen…", autocomplete: "off", spellcheck: "false" });
  const list = el("div", { class: "shelf", role: "radiogroup", "aria-label": tr("Models") });
  const count = el("p", { class: "hint", role: "status" });
  const options = el("section", { class: "group" });
  const refresh = () => fillShelf(list, count, search.value);
  search.addEventListener("input", refresh);
  list.addEventListener("keydown", (event) => walk(list, event));
  panel.replaceChildren(
    el("section", { class: "group" }, el("label", { for: "model-search", class: "big" }, tr("Models")), search, count, list),
    el("section", { class: "group" }, el("h2", { class: "big" }, tr("Your own model")), dropZone(refresh)), options);
  const update = () => {
    refresh();
    viewOptions(options);
  };
  update();
  const chosen = list.querySelector('[aria-checked="true"]');
  if (chosen) list.scrollTop = chosen.offsetTop - list.offsetTop - 60;
  return update;
}

/** Return the model that the page starts with. */
export function firstModel() {
  const { target } = catalogue;
  if (target && (target.kind === "model" || target.kind === "file") && target.id) return target.id;
  return defaultModel() || catalogue.models[0]?.name || "";
}

/** Return the view's default model. */
export function defaultModel() {
  return viewsOf("models")[0]?.controls.find(({ name }) => name === "model")?.default || "";
}

function fillShelf(list, count, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const { target } = catalogue;
  const file = target?.kind === "file" && target.id ? [{ id: target.id, title: target.name }] : [];
  const all = [...own, ...file, ...catalogue.models.map((model) => ({ id: model.name, title: model.name, ...model }))];
  const found = all.filter((model) => words.every((word) => JSON.stringify(model).toLowerCase().includes(word)));
  count.textContent = words.length
    ? tr("{found} of {all} models", { found: found.length, all: all.length })
    : tr("{all} models", { all: all.length });
  list.replaceChildren(...found.map((model) => {
    const chosen = model.id === state.model;
    const length = model.trained ?? model.max_len;
    return el("button", {
      type: "button", role: "radio", "aria-checked": String(chosen), tabindex: chosen || (model === found[0] && !found.some(({ id }) => id === state.model)) ? "0" : "-1",
      data: { model: model.id }, onclick: () => choose(list, model.id),
    }, el("span", {}, model.title || model.name), length ? el("small", {}, say(length), el("span", { class: "unseen" }, tr(" positions trained"))) : null);
  }));
}

/** Show a model, starting at its first layer: models differ in the number and kinds of layers. */
function show(id) {
  const { layer: _, ...v } = state.v;
  change({ model: id, at: "", v }, "model");
}

function choose(list, id) {
  show(id);
  for (const button of list.children) {
    const chosen = button.dataset.model === id;
    button.setAttribute("aria-checked", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
    if (chosen) button.focus({ preventScroll: true });
  }
}

function walk(list, event) {
  const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const buttons = [...list.children];
  const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
  next.scrollIntoView({ block: "nearest" });
  choose(list, next.dataset.model);
  event.preventDefault();
}

function dropZone(refresh) {
  const input = el("input", { type: "file", id: "model-file", multiple: true, accept: ".json,.safetensors,application/json", disabled: isExport() });
  const { target } = catalogue;
  const refused = target?.kind === "file" && translate(target.error);
  const said = el("p", { class: refused ? "said error" : "said", role: "status" }, refused || "");
  const zone = el("div", { class: "drop" },
    el("label", { for: "model-file" }, tr("Drop a config.json or a .safetensors file here, or choose one")), input,
    el("p", { class: "hint" }, tr("The file goes only to the server on this machine. Only the header of a checkpoint is read: tensor names and shapes.")), said);
  const take = (files) => read([...files]).then((model) => {
    own.unshift(model);
    said.className = "said";
    said.textContent = [tr("Read {name}.", { name: model.title }), ...(model.warnings || []).map((warning) => translate(warning.message || warning))].join(" ");
    show(model.id);
    refresh();
  }, (error) => {
    said.className = "said error";
    said.textContent = error.message;
  });
  input.addEventListener("change", () => take(input.files));
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    take(event.dataTransfer.files);
  });
  return zone;
}

/** Send the parts that the server needs: a checkpoint's header, a configuration, or both. */
async function read(files) {
  if (!files.length) throw new Error(tr("No file was chosen."));
  const checkpoint = files.find((file) => file.name.endsWith(".safetensors"));
  const config = files.find((file) => file.name.endsWith(".json"));
  if (!checkpoint && !config) throw new Error(tr("{file}: neither a config.json nor a .safetensors file. Drop one of these.", { file: files[0].name }));
  const parts = [];
  if (checkpoint) parts.push(await header(checkpoint));
  if (config) parts.push(config);
  const blob = new Blob(parts);
  if (blob.size > MOST) throw new Error(tr("{file}: the header and configuration have {size} bytes together; at most 1 MiB is read.", { file: files[0].name, size: say(blob.size) }));
  return { title: (checkpoint || config).name, ...await inspectModel((checkpoint || config).name, blob) };
}

/** Return the header of a safetensors file; the first eight bytes hold its length. */
async function header(file) {
  const about = { file: file.name, whole: say(file.size) };
  const start = new DataView(await file.slice(0, 8).arrayBuffer());
  if (start.byteLength < 8) throw new Error(tr("{file}: too short for a safetensors file.", about));
  const length = Number(start.getBigUint64(0, true));
  about.length = say(length);
  if (length > MOST - 8) throw new Error(tr("{file}: its header has {length} bytes; at most 1 MiB is read. Drop the model's config.json instead.", about));
  if (length + 8 > file.size) throw new Error(tr("{file}: the header should have {length} bytes, but the file has only {whole}: it is truncated, or not a safetensors file.", about));
  return file.slice(0, 8 + length);
}
