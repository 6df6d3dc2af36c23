// The page's language: English, or Chinese by a table of templates. The server answers in English; the page translates.

import { remember, remembered } from "./state.js";

/** The languages by the name that the button shows. */
export const LANGUAGES = { en: "English", zh: "中文" };

const KEY = "posenc-language";
const MOST_KEPT = 2000;
const LONGEST = 2000;
const AS_WRITTEN = new Set(["name", "key", "known", "choices", "got"]); // values that are names of options and what was typed
const tables = new Map([["en", new Map()]]); // texts by their English templates
const changed = new Set();
const kept = new Map(); // the server's texts and their translations
let language = "en";
let patterns = []; // of the server's templates, those with most literal text first

/** Return the page's language. */
export function current() {
  return language;
}

/** Return the language in the address, the last choice, or else the one that the browser prefers. */
export function firstLanguage(fromAddress) {
  const preferred = (navigator.languages?.[0] || "").startsWith("zh") ? "zh" : "en";
  return [fromAddress, remembered(KEY), preferred].find((one) => Object.hasOwn(LANGUAGES, one));
}

/** Translate from now on to a language; `load(language)` returns its table. */
export async function speak(wanted, load) {
  if (!tables.has(wanted)) tables.set(wanted, new Map(Object.entries(await load(wanted))));
  language = wanted;
  patterns = [...tables.get(language).keys()].filter((text) => /\{\w+:/.test(text)).map(patternOf).sort((a, b) => b.literal - a.literal);
  kept.clear();
  document.documentElement.lang = language === "zh" ? "zh-CN" : language;
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = tr(node.dataset.text ||= node.textContent);
  for (const node of document.querySelectorAll("[data-label]")) node.setAttribute("aria-label", tr(node.dataset.label ||= node.getAttribute("aria-label")));
  for (const call of changed) call();
}

/** Keep a language for the next visit. */
export function keepLanguage(chosen) {
  remember(KEY, chosen);
}

/** Register a callback for changes of the language. */
export function onLanguage(call) {
  changed.add(call);
}

/** Return a text in the page's language, with `values` in the place of {their names}. Tests read the literals and compare them with the table. */
export function tr(text, values = {}) {
  return filled(tables.get(language).get(text) ?? text, values);
}

/** Translate a text of the server: one with an entry, or one made by a template that names formats, whose values are translated too, unless they are names. */
export function translate(text) {
  if (language === "en" || typeof text !== "string" || !text) return text;
  if (kept.size > MOST_KEPT) kept.clear();
  if (!kept.has(text)) kept.set(text, tables.get(language).get(text) ?? byPattern(text) ?? text);
  return kept.get(text);
}

function byPattern(text) {
  if (text.length > LONGEST) return undefined; // no template makes so long a text, and matching it would take seconds
  for (const { pattern, template } of patterns) {
    const found = pattern.exec(text);
    if (!found) continue;
    const values = Object.entries(found.groups).map(([name, value]) => [name, AS_WRITTEN.has(name) ? value : translate(value)]);
    return filled(tables.get(language).get(template), Object.fromEntries(values));
  }
  return undefined;
}

/** Return what a template of the server makes, as a regular expression: {name:s} is any text, with another format a number. */
function patternOf(template) {
  const parts = template.split(/(\{\w+[^}]*\})/);
  const literal = parts.filter((_, i) => i % 2 === 0);
  const named = new Set();
  const source = parts.map((part, i) => {
    if (i % 2 === 0) return part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    const [, name, format] = /^\{(\w+):?(.*)\}$/.exec(part);
    if (named.has(name)) return `\\k<${name}>`;
    named.add(name);
    return `(?<${name}>${format === "s" ? ".+?" : "[-−\\d][-+\\d.,e]*|-?inf|nan"})`;
  });
  return { template, literal: literal.join("").length, pattern: new RegExp(`^${source.join("")}$`, "s") };
}

function filled(template, values) {
  return template.replace(/\{(\w+)[^}]*\}/g, (_, name) => values[name]);
}
