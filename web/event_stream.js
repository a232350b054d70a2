// Server-sent events over fetch. EventSource cannot send an Authorization header, and a token in the
// address would end up in access logs.

import { backoffMs, sleep } from "./backoff.js";
import { language } from "./i18n.js";

/** The server comments every now and then to say it lives; longer silence means a dead connection. */
const SILENCE_MS_MAX = 60_000;
/** A connection that lived this long was a good one, and the next failure is a first failure. */
const LIVED_MS = 10_000;
/** An event is one order. Anything near this size is not ours, and must not fill the memory. */
const EVENT_CHARS_MAX = 65_536;

export class EventParser {
  #buffer = "";
  #event = "message";
  #data = [];
  /** The id of the last event, to come back with. */
  lastId = "";

  /** Takes any piece of the stream, gives the events it completed. */
  push(piece) {
    this.#buffer += piece;
    const events = [];
    for (;;) {
      const end = this.#buffer.search(/\r\n|\n|\r/);
      if (end < 0) break;
      // A lone \r at the end may be the first half of \r\n.
      if (this.#buffer[end] === "\r" && end === this.#buffer.length - 1) break;
      const line = this.#buffer.slice(0, end);
      this.#buffer = this.#buffer.slice(end + (this.#buffer.startsWith("\r\n", end) ? 2 : 1));
      const event = this.#line(line);
      if (event) events.push(event);
    }
    if (this.#buffer.length > EVENT_CHARS_MAX) throw new RangeError("event too long");
    return events;
  }

  #line(line) {
    if (line === "") {
      const done = this.#data.length > 0 ? { event: this.#event, data: this.#data.join("\n") } : null;
      this.#event = "message";
      this.#data = [];
      return done;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#event = value;
    if (field === "data") this.#data.push(value);
    if (field === "id") this.lastId = value;
    return null;
  }
}

/** Reads one connection to its end. */
async function read(path, bearer, lastId, onOpen, onEvent, signal) {
  const abort = new AbortController();
  const stop = () => abort.abort();
  signal.addEventListener("abort", stop);
  let silence = setTimeout(stop, SILENCE_MS_MAX);
  try {
    const headers = {
      Accept: "text/event-stream", "Accept-Language": language(), Authorization: `Bearer ${bearer}`,
    };
    // The stream then begins with what happened meanwhile.
    if (lastId) headers["Last-Event-ID"] = lastId;
    const response = await fetch(path, {
      headers,
      cache: "no-store",
      signal: abort.signal,
    });
    if (!response.ok || !response.body) throw new Error(`status ${response.status}`);
    onOpen();
    const parser = new EventParser();
    const decoder = new TextDecoder();
    const reader = response.body.getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(silence);
      silence = setTimeout(stop, SILENCE_MS_MAX);
      for (const event of parser.push(decoder.decode(value, { stream: true }))) onEvent(event, parser.lastId);
    }
  } finally {
    clearTimeout(silence);
    signal.removeEventListener("abort", stop);
    stop();
  }
}

/** Follows the stream until `signal` is aborted. `onState(true)` while connected. */
export async function followEvents({ path, bearer, onEvent, onState, signal }) {
  let failures = 0;
  let lastId = "";
  const hear = (event, id) => {
    lastId = id;
    onEvent(event);
  };
  while (!signal.aborted) {
    const startedAt = performance.now();
    try {
      await read(path, bearer(), lastId, () => onState(true), hear, signal);
    } catch { /* the reason does not matter: wait and connect again */ }
    onState(false);
    if (signal.aborted) return;
    if (performance.now() - startedAt > LIVED_MS) failures = 0;
    await sleep(backoffMs(failures));
    failures += 1;
  }
}
