// Every question of the console to the server. The browser sends the session's cookie by itself; the header
// shows that it was a page of ours that asked, which a form on somebody else's page cannot send.

import { language } from "../i18n.js";
import { Problem, problemFrom, retryAfterMs } from "../problem.js";

const BASE = "/api/v1/admin";
const CONSOLE_ANSWER_WITHIN_MS = 20_000;

/** Hears `over` when the server says that nobody is signed in any more. */
export const session = new EventTarget();

const headers = (more = {}) => ({
  Accept: "application/json", "Accept-Language": language(), "X-Seckill-Console": "1", ...more,
});

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

async function refused(response) {
  const body = parsed(await response.text());
  return problemFrom(response.status, body, retryAfterMs(response.headers.get("Retry-After")));
}

/**
 * The raw answer, or a `Problem`.
 * @param {string} method
 * @param {string} path
 * @param {{ body?: unknown, more?: Record<string, string>, signal?: AbortSignal }} [options]
 */
export async function askConsole(method, path, { body, more, signal } = {}) {
  let response;
  try {
    response = await fetch(BASE + path, {
      method,
      credentials: "same-origin",
      cache: "no-store",
      headers: headers({ ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...more }),
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch {
    throw new Problem({ code: signal?.aborted ? "timeout" : "offline", unknown: true });
  }
  if (response.ok) return response;
  const problem = await refused(response);
  if (response.status === 401 && path !== "/session") session.dispatchEvent(new Event("over"));
  throw problem;
}

/**
 * What was asked for, as JSON.
 * @param {{ body?: unknown, more?: Record<string, string>, withinMs?: number }} [options]
 */
export async function call(method, path, options = {}) {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), options.withinMs ?? CONSOLE_ANSWER_WITHIN_MS);
  try {
    const response = await askConsole(method, path, { ...options, signal: abort.signal });
    const text = await response.text();
    return text ? JSON.parse(text) : null;
  } finally {
    clearTimeout(timer);
  }
}

/** A table for a spreadsheet, offered as a file. */
export async function download(path, name) {
  const response = await askConsole("GET", path, { more: { Accept: "text/csv" } });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** `{a: 1, b: null}` is "?a=1". */
export function query(fields) {
  const given = Object.entries(fields).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length === 0 ? "" : `?${new URLSearchParams(given)}`;
}
