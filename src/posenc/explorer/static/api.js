// Requests to the server: JSON and frames. An exported page holds its answers itself.

import { tr, translate } from "./language.js";

const HELD = new Map(); // the latest answers by address
const MOST_HELD = 48;
let token = "";

/** Return whether this page is an exported file, which holds its answers itself. */
export function isExport() {
  return Boolean(window.POSENC_FRAMES);
}

/** Return whether a query can be answered: always with a server; in an exported page only if the file holds the answer. */
export function canAnswer(path, query) {
  return !isExport() || key(path, query) in window.POSENC_FRAMES;
}

/** Request the start answer, repeatedly until the encodings are loaded. */
export async function loadStart(onWait) {
  for (;;) {
    const start = isExport() ? window.POSENC_FRAMES["/api/start"] : await getJson("/api/start");
    if (start.failure) throw new Error(translate(start.failure));
    onWait(start);
    if (start.ready) {
      token = start.token;
      return start;
    }
    await new Promise((done) => setTimeout(done, 150));
  }
}

/** Return the texts in a language by their English templates. */
export function loadTexts(language) {
  const path = `/api/language/${language}`;
  return isExport() ? window.POSENC_FRAMES[path] : getJson(path);
}

/** Return a view's answer as `{header, arrays}`, arrays as Float32Array. */
export async function loadFrame(view, query, signal) {
  const path = `/api/view/${view}`;
  if (isExport()) return fromFile(path, query);
  const address = withQuery(path, query);
  if (HELD.has(address)) return HELD.get(address);
  const response = await ask(address, { signal });
  const binary = (response.headers.get("content-type") || "").includes("octet-stream");
  const frame = binary ? decode(await response.arrayBuffer()) : { header: await response.json(), arrays: [] };
  HELD.set(address, frame);
  if (HELD.size > MOST_HELD) HELD.delete(HELD.keys().next().value);
  return frame;
}

/** Send bytes read from a model's files, unchanged; returns `{id, title, layers, warnings}`. */
export async function inspectModel(name, blob) {
  const headers = { "Content-Type": "application/octet-stream", "X-Posenc-Token": token };
  const response = await ask(withQuery("/inspect", { name }), { method: "POST", headers, body: await blob.arrayBuffer() });
  return response.json();
}

/** Return the page as one file that holds the answers to `questions`, a list of `[view, query]`; requests them now. */
export async function packPage(start, state, questions) {
  const frames = { "/api/start": { ...start, token: "", ready: true }, "/api/language/zh": await loadTexts("zh") };
  for (const [view, query] of questions) {
    const path = `/api/view/${view}`;
    const response = await ask(withQuery(path, query)).catch(() => null); // a view that refuses is left out
    if (!response) continue;
    const binary = (response.headers.get("content-type") || "").includes("octet-stream");
    frames[key(path, query)] = binary ? base64(await response.arrayBuffer()) : await response.json();
  }
  const shell = await (await ask("/api/shell")).text();
  const json = (value) => JSON.stringify(value).replaceAll("<", "\\u003c");
  return shell.replace("/*POSENC_FRAMES*/{}", () => json(frames)).replace('/*POSENC_STATE*/""', () => json(state));
}

/** Return the address of a query. */
export function withQuery(path, query) {
  const text = new URLSearchParams(query).toString();
  return text ? `${path}?${text}` : path;
}

/** Decode a frame's bytes into header and arrays. */
export function decode(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let offset = 4 + length;
  const arrays = header.arrays.map(({ shape }) => {
    const size = shape.reduce((product, n) => product * n, 1);
    const values = new Float32Array(buffer, offset, size);
    offset += 4 * size;
    return values;
  });
  return { header, arrays };
}

function fromFile(path, query) {
  const held = window.POSENC_FRAMES[key(path, query)];
  if (held === undefined) {
    throw new Error(tr("This exported file does not hold that picture, only the views of its export. Run posenc explore for all of them."));
  }
  if (typeof held !== "string") return { header: held, arrays: [] };
  return decode(Uint8Array.from(atob(held), (letter) => letter.charCodeAt(0)).buffer);
}

function base64(buffer) {
  const bytes = new Uint8Array(buffer);
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return btoa(text);
}

/** Return the key of an answer in an exported file: sorted parameters, without the picture's size. */
function key(path, query) {
  const kept = Object.entries(query).filter(([name]) => name !== "rows" && name !== "columns");
  kept.sort(([one], [other]) => (one < other ? -1 : 1));
  const text = kept.map((pair) => pair.map((part) => encodeURIComponent(part)).join("=")).join("&");
  return text ? `${path}?${text}` : path;
}

async function getJson(address) {
  return (await ask(address)).json();
}

async function ask(address, options) {
  let response;
  try {
    response = await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(tr("The server does not answer. Was posenc explore stopped? Start it again and reload this page."));
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw new Error(translate(said.error) || tr("The server answered {status}.", { status: response.status }));
}
