// Two languages. A dictionary is {en: {key: text}, zh: {key: text}} and lives beside the page that
// speaks it; `{name}` in a text is filled in.

import { keep, recall } from "./storage.js";

const REMEMBERED = "seckill_lang";
const LANGUAGES = ["en", "zh"];

export function chooseLanguage(remembered, preferred) {
  if (LANGUAGES.includes(remembered)) return remembered;
  for (const tag of preferred ?? []) {
    const found = LANGUAGES.find((lang) => tag.toLowerCase().split("-")[0] === lang);
    if (found) return found;
  }
  return "en";
}

/** The viewer's own flavour of the language (en-GB, zh-TW) for numbers and dates, if they have one. */
export function chooseLocale(lang, preferred) {
  const own = (preferred ?? []).find((tag) => tag.toLowerCase().split("-")[0] === lang);
  return own ?? (lang === "zh" ? "zh-CN" : "en");
}

export function fill(text, values = {}) {
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

const preferred = () => globalThis.navigator?.languages ?? [];
let current = null;
const listeners = new Set();

export function language() {
  current ??= chooseLanguage(recall(REMEMBERED), preferred());
  return current;
}

export const locale = () => chooseLocale(language(), preferred());

export const other = () => (language() === "zh" ? "en" : "zh");

export function setLanguage(lang) {
  current = lang;
  keep(REMEMBERED, lang);
  for (const listener of listeners) listener(lang);
}

/** Draws the page in the current language now, and again whenever the viewer changes it. */
export function speaks(words, draw) {
  const speak = () => {
    document.documentElement.lang = language() === "zh" ? "zh-CN" : "en";
    /** @type {NodeListOf<HTMLElement>} */
    const told = document.querySelectorAll("[data-t]");
    for (const node of told) {
      node.textContent = say(words, node.dataset.t);
    }
    const button = document.getElementById("language");
    button.textContent = language() === "zh" ? "English" : "中文";
    button.lang = language() === "zh" ? "en" : "zh-CN";
    draw();
  };
  listeners.add(speak);
  document.getElementById("language").addEventListener("click", () => setLanguage(other()));
  speak();
}

export function say(words, key, values) {
  return fill(words[language()][key] ?? words.en[key] ?? key, values);
}

/** @type {Intl.DateTimeFormatOptions} */
const TIME = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
/** @type {Intl.DateTimeFormatOptions} */
const DATE_TIME = { month: "short", day: "numeric", ...TIME };

/** In the viewer's zone; without the date if that is today. */
export function dateTime(ms, now) {
  const today = new Date(ms).toDateString() === new Date(now).toDateString();
  return new Intl.DateTimeFormat(locale(), today ? TIME : DATE_TIME).format(ms);
}
