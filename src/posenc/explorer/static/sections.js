// The panels of the extension bench and of a study's attention.

import { canAnswer, isExport, loadFrame } from "./api.js";
import { catalogue } from "./catalogue.js";
import { el } from "./dom.js";
import { viewOptions } from "./encodings.js";
import { tr, translate } from "./language.js";
import { setOption, state } from "./state.js";

/** The bench's panel: lengths and base as sliders, and a box for each method. */
export function benchPanel(panel) {
  const options = el("section", { class: "group" });
  const methods = el("fieldset", { class: "group methods" });
  panel.replaceChildren(about(tr("Run a model on texts longer than it was trained on. Each method changes the frequencies of the dimension pairs differently.")), methods, options);
  const update = () => {
    viewOptions(options, new Set(["methods"]));
    fillMethods(methods);
  };
  update();
  return update;
}

async function fillMethods(box) {
  const control = catalogue.views.get(state.view)?.controls.find(({ name }) => name === "methods");
  if (!control) return;
  const { header } = await loadFrame(state.view, {}).catch(() => ({ header: {} }));
  const all = (header.methods || []).map(({ method }) => method);
  const chosen = new Set(!state.v.methods || state.v.methods === "all" ? all : state.v.methods.split(","));
  const toggle = () => {
    const ticked = [...box.querySelectorAll("input:checked")].map(({ value }) => value);
    if (ticked.length) setOption("v", "methods", ticked.length === all.length ? "all" : ticked.join(","), control.default);
  };
  box.replaceChildren(el("legend", { class: "big" }, tr("Methods")), ...all.map((name, i) => el("div", { class: "control bool", data: { method: name } },
    el("span", { class: "line" },
      el("input", { type: "checkbox", id: `method-${i}`, value: name, checked: chosen.has(name), disabled: isExport(), onchange: toggle }),
      el("label", { for: `method-${i}` }, name)),
    el("p", { class: "hint" }, translate(header.methods[i].says) || ""))));
}

/** The panel of a study's attention maps: its models as a list, and text, layer and head. */
export function attentionPanel(panel) {
  const options = el("section", { class: "group" });
  panel.replaceChildren(about(tr("Small models trained by a study, each with a different encoding. Enter a text to see which tokens attend to which.")), options);
  const update = () => viewOptions(options, new Set(["cell"]));
  update();
  return update;
}

/** Fill the list of models from the first answer, and limit the layer and head controls to what the model has. */
export function learnFromFrame(view, headers) {
  const [header] = headers;
  if (!header) return;
  for (const [name, most] of [["layer", header.n_layers ?? header.layers?.length], ["head", header.n_heads]]) {
    const box = document.getElementById(`v-${name}`);
    if (!box || !most) continue;
    box.max = most - 1;
    const slider = document.querySelector(`[data-slider="${name}"]`);
    if (slider) slider.max = most - 1;
  }
  if (!header.cells?.length || document.getElementById("cell")) return;
  const list = el("select", { id: "cell", disabled: isExport() && !header.cells.some(({ cell }) => canAnswer(`/api/view/${view.id}`, { cell })) },
    header.cells.map(({ cell }) => el("option", { value: cell }, cell)));
  list.value = header.cell;
  list.addEventListener("change", () => setOption("v", "cell", list.value, header.cells[0].cell));
  document.querySelector("#panel .group").append(el("label", { for: "cell", class: "big" }, tr("Model")), list);
}

function about(sentence) {
  return el("section", { class: "group" }, el("p", { class: "summary" }, sentence));
}
