// One question to the server, and its answer: what was asked for, or a `Problem` (RFC 9457
// problem+json with a stable `code`, or what the network did). It knows no page and no language, so that
// the button on other people's pages uses it as well.

export class Problem extends Error {
  /**
   * `unknown` means that no answer came: what was asked may well have happened. It is asked again
   * with the same Idempotency-Key and never reported as a refusal.
   */
  constructor({ code, status = 0, retryAfterMs = null, unknown = false, body = {} }) {
    super(code);
    this.code = code;
    this.status = status;
    this.retryAfterMs = retryAfterMs;
    this.unknown = unknown;
    this.body = body;
  }
}

/** Retry-After holds seconds or an HTTP date. */
export function retryAfterMs(header, wallMs = Date.now()) {
  if (!header) return null;
  if (/^\s*\d+\s*$/.test(header)) return Number(header) * 1_000;
  const at = Date.parse(header);
  return Number.isNaN(at) ? null : Math.max(0, at - wallMs);
}

export function problemFrom(status, body, retryAfter) {
  const fields = body !== null && typeof body === "object" ? body : {};
  if (typeof fields.code === "string") {
    return new Problem({ code: fields.code, status, retryAfterMs: retryAfter, body: fields });
  }
  // Without a code it was not our server that spoke, but something on the way to it.
  const unknown = status === 502 || status === 504;
  const code = { 401: "unauthorized", 404: "not_found", 429: "rate_limited", 503: "busy" }[status];
  return new Problem({ code: code ?? "failed", status, retryAfterMs: retryAfter, unknown, body: fields });
}

const ANSWER_WITHIN_MS = 10_000;

function jsonOr(text, otherwise) {
  try {
    return JSON.parse(text);
  } catch {
    return otherwise;
  }
}

/**
 * @typedef {object} Asked
 * @property {string} [lang] the language of what people read
 * @property {string | null} [bearer]
 * @property {Record<string, string>} [headers]
 * @property {unknown} [body] sent as JSON
 * @property {RequestCache} [cache]
 * @property {number} [answerWithinMs]
 */

/**
 * @param {string} method
 * @param {string} url
 * @param {Asked} [asked]
 * @returns {Promise<any>}
 */
export async function ask(method, url, {
  lang, bearer = null, headers = {}, body, cache, answerWithinMs = ANSWER_WITHIN_MS,
} = {}) {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), answerWithinMs);
  try {
    const response = await fetch(url, {
      method,
      cache,
      credentials: "omit",
      headers: {
        Accept: "application/json",
        "Accept-Language": lang,
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
