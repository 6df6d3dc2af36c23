// Loads plotly: only for the first chart, since it has 5 MB, and without anything that the page's policy forbids.

import { el } from "./dom.js";
import { tr } from "./language.js";

let loading = null;

/** Return plotly, loaded once. */
export function loadPlotly() {
  loading ??= window.Plotly ? Promise.resolve(window.Plotly) : insert();
  return loading;
}

function insert() {
  const held = document.getElementById("plotly-source"); // an exported page holds the script as text
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
      failed(new Error(tr("The charts need plotly, which is not installed where the server runs: pip install 'posenc[web]'.")));
    };
    document.head.append(script);
  });
}

/** While plotly loads, drop the style elements that it adds for geographic maps: unused here, and forbidden by the policy. */
function withoutStyles() {
  const { head } = document;
  head.appendChild = (node) => (node.tagName === "STYLE" ? node : Node.prototype.appendChild.call(head, node));
  return () => delete head.appendChild;
}
