// What the console says: its words, and numbers, money and times as the reader's language writes them.

import { language, locale, say } from "../i18n.js";
import { formatMoney } from "../money.js";
import { two } from "./times.js";
import { words } from "./words.js";

export const t = (key, values) => say(words, key, values);

/** A word of the server's, such as a state, if we have one for it; else as it came. */
export const named = (group, word) => words[language()][`${group}_${word}`] ?? word;

export const number = (value) => (value === null || value === undefined ? "–" : new Intl.NumberFormat(locale()).format(value));

/** 12345 is "12.3K", for tiles. */
export const compact = (value) => new Intl.NumberFormat(locale(), { notation: "compact", maximumFractionDigits: 1 }).format(value);

export const money = (minor, currency) => formatMoney(minor, currency, locale());

/** Microseconds, with as many digits as matter. */
export function latency(micros) {
  if (micros === null || micros === undefined) return "–";
  if (micros < 1_000) return `${micros} µs`;
  const ms = micros / 1_000;
  return ms < 1_000 ? `${ms.toFixed(ms < 10 ? 1 : 0)} ms` : `${(ms / 1_000).toFixed(1)} s`;
}

/** "02:09", "1:02:09", "3 d 02:09:00"; never below zero. */
export function span(ms) {
  const s = Math.max(0, Math.ceil(ms / 1_000));
  const clock = `${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
  const hours = Math.floor(s / 3_600);
  if (hours < 1) return clock;
  if (hours < 24) return `${hours}:${clock}`;
  return t("days", { days: Math.floor(hours / 24), clock: `${two(hours % 24)}:${clock}` });
}

/** @type {Intl.DateTimeFormatOptions} */
const FULL = { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
export const time = (ms) => (ms === null || ms === undefined ? "–" : new Intl.DateTimeFormat(locale(), FULL).format(ms));
/** @type {Intl.DateTimeFormatOptions} */
const CLOCK = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
export const clock = (ms) => new Intl.DateTimeFormat(locale(), CLOCK).format(ms);

/** The details of an entry of the audit: times as times, a change as "before → after". */
export function inWords(detail) {
  const one = (name, value) => {
    if (Array.isArray(value) && value.length === 2) return value.map((part) => one(name, part)).join(" → ");
    if (/(_at|^until)$/.test(name) && Number.isInteger(value)) return time(value);
    return value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value);
  };
  return Object.entries(detail ?? {}).map(([name, value]) => `${name}: ${one(name, value)}`).join(" · ");
}

/** The zone in which times are shown and entered. */
export function zone(at = new Date()) {
  const minutes = -at.getTimezoneOffset();
  const sign = minutes < 0 ? "-" : "+";
  const offset = `UTC${sign}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
  return `${Intl.DateTimeFormat().resolvedOptions().timeZone} (${offset})`;
}

/** What a server said no with, in words. */
export function why(problem) {
  const { detail, title, errors } = problem.body ?? {};
  if (problem.code === "offline" || problem.code === "timeout") return t(problem.code);
  const first = Array.isArray(errors) ? errors.map((error) => `${error.field}: ${language() === "zh" ? error.problem_zh : error.problem}`).slice(0, 5).join("; ") : "";
  return [detail || title || problem.code, first].filter(Boolean).join(" — ");
}
