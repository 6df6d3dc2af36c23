// Loading plotly: 5 MB, so only when the first chart is drawn, and so that the page's policy has nothing to refuse.

import { el } from "./dom.js";

let loading = null;

/** Return plotly, loaded once. */
export function loadPlotly() {
  loading ??= window.Plotly ? Promise.resolve(window.Plotly) : insert();
  return loading;
}

function insert() {
  const held = document.getElementById("plotly-source"); // an exported page bears it as text
  const source = held ? URL.createObjectURL(new Blob([held.textContent], { type: "text/javascript" })) : "/plotly.js";
  return new Promise((done, failed) => {
    const restore = held ? () => URL.revokeObjectURL(source) : withoutStyles();
    const script = el("script", { src: source });
    script.onload = () => {
      restore();
      done(window.Plotly);
    };
    script.onerror = () => {
      restore();
      loading = null;
      failed(new Error("The charts need plotly, which the server could not give: install posenc[web]."));
    };
    document.head.append(script);
  });
}

/** While plotly loads, leave out the style elements that it adds for maps, which we do not draw and the policy forbids. */
function withoutStyles() {
  const { head } = document;
  head.appendChild = (node) => (node.tagName === "STYLE" ? node : Node.prototype.appendChild.call(head, node));
  return () => delete head.appendChild;
}
