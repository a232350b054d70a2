// Every call to /api/v1 goes through here: language, time-out, and one kind of failure (`Problem`).

import { language } from "./i18n.js";
import { Problem, problemFrom, retryAfterMs } from "./problem.js";

const BASE = "/api/v1";
const ANSWER_WITHIN_MS = 10_000;

export async function call(method, path, {
  bearer = null, headers = {}, body, cache, answerWithinMs = ANSWER_WITHIN_MS,
} = {}) {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), answerWithinMs);
  try {
    const response = await fetch(BASE + path, {
      method,
      cache,
      headers: {
        Accept: "application/json",
        "Accept-Language": language(),
        ...(bearer ? { Authorization: `Bearer ${bearer}` } : {}),
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...headers,
      },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: abort.signal,
    });
    const text = await response.text();
    if (response.ok) return text ? JSON.parse(text) : null;
    throw problemFrom(response.status, jsonOr(text, {}), retryAfterMs(response.headers.get("Retry-After")));
  } catch (error) {
    if (error instanceof Problem) throw error;
    throw new Problem({ code: abort.signal.aborted ? "timeout" : "offline", unknown: true });
  } finally {
    clearTimeout(timer);
  }
}

function jsonOr(text, otherwise) {
  try {
    return JSON.parse(text);
  } catch {
    return otherwise;
  }
}

export const askTime = async () => (await call("GET", "/time", { cache: "no-store", answerWithinMs: 3_000 })).now_ms;
