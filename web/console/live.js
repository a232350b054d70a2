// The pushed stream of the live board: fifteen minutes when it opens, then each second. Over fetch, because an
// EventSource cannot send the header that our requests carry.

import { backoffMs, sleep } from "../backoff.js";
import { EventParser } from "../event_stream.js";
import { askConsole } from "./call.js";

const SAMPLES_MAX = 900;
/** Seconds come each second; longer silence means a dead connection. */
const LIVE_SILENCE_MS_MAX = 8_000;

export class Live extends EventTarget {
  samples = [];
  state = null;
  connected = false;
  #offset = 0;
  #stop = null;

  /** The server's clock, as the last second told it. */
  now() {
    return Date.now() + this.#offset;
  }

  start() {
    if (this.#stop) return;
    this.#stop = new AbortController();
    this.#follow(this.#stop.signal);
  }

  stop() {
    this.#stop?.abort();
    this.#stop = null;
    this.samples = [];
    this.state = null;
  }

  /** Takes one event; seconds that were told before are left out. */
  hear({ event, data }) {
    const told = JSON.parse(data);
    if (event === "state") {
      this.state = told;
    } else if (event === "sample") {
      const last = this.samples.at(-1);
      if (last && told.t <= last.t) return;
      this.samples.push(told);
      if (this.samples.length > SAMPLES_MAX) this.samples.shift();
    }
  }

  async #follow(signal) {
    let failures = 0;
    while (!signal.aborted) {
      try {
        await this.#read(signal, () => { failures = 0; });
      } catch (problem) {
        if (problem.status === 401) return;
      }
      this.#say(false);
      if (signal.aborted) return;
      await sleep(Math.min(5_000, backoffMs(failures)));
      failures += 1;
    }
  }

  async #read(signal, onOpen) {
    const abort = new AbortController();
    const stop = () => abort.abort();
    signal.addEventListener("abort", stop);
    let silence = setTimeout(stop, LIVE_SILENCE_MS_MAX);
    try {
      const response = await askConsole("GET", "/live", { more: { Accept: "text/event-stream" }, signal: abort.signal });
      onOpen();
      const parser = new EventParser();
      const decoder = new TextDecoder();
      const reader = response.body.getReader();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(stop, LIVE_SILENCE_MS_MAX);
        for (const event of parser.push(decoder.decode(value, { stream: true }))) this.hear(event);
        const told = Math.max(this.samples.at(-1)?.t ?? 0, this.state?.now_ms ?? 0);
        if (told) this.#offset = told - Date.now();
        this.#say(true);
      }
    } finally {
      clearTimeout(silence);
      signal.removeEventListener("abort", stop);
      stop();
    }
  }

  #say(connected) {
    this.connected = connected;
    this.dispatchEvent(new Event("told"));
  }
}

/** Of refused claims: which layer stopped them. */
const LAYERS = {
  door: ["rate_limited", "misdirected", "request_timeout", "too_large", "head_too_large", "bad_request"],
  token: ["bad_token", "bad_challenge", "not_eligible", "cooling_down", "unauthorized", "forbidden", "unsupported_media_type"],
  lane: ["too_hot"],
};

/** What became of the claims of these seconds: how many each layer stopped, and for what. */
export function funnelOf(samples) {
  const stopped = { door: {}, token: {}, cache: {}, lane: {}, gate: {} };
  const sum = { asked: 0, admitted: 0 };
  const add = (layer, code, n) => { if (n > 0) stopped[layer][code] = (stopped[layer][code] ?? 0) + n; };
  for (const sample of samples) {
    sum.asked += sample.asked;
    sum.admitted += sample.admitted;
    for (const [code, n] of Object.entries(sample.refused)) {
      const layer = Object.keys(LAYERS).find((name) => LAYERS[name].includes(code)) ?? "gate";
      if (code !== "sold_out") {
        add(layer, code, n);
        continue;
      }
      const cached = Math.min(sample.cached, n);
      add("cache", code, cached);
      add("gate", code, n - cached);
    }
  }
  let left = sum.asked;
  const layers = Object.entries(stopped).map(([name, codes]) => {
    const all = Object.values(codes).reduce((a, b) => a + b, 0);
    const came = left;
    left -= all;
    return { name, came, stopped: all, codes };
  });
  return { ...sum, layers };
}

/** Refused by reason, the most frequent first. */
export function reasonsOf(samples) {
  const reasons = {};
  for (const { refused } of samples) {
    for (const [code, n] of Object.entries(refused)) reasons[code] = (reasons[code] ?? 0) + n;
  }
  return Object.entries(reasons).sort(([, a], [, b]) => b - a);
}

/** Per second, over the last few seconds. */
export function rate(samples, of, seconds = 3) {
  const last = samples.slice(-seconds);
  const ms = last.reduce((sum, sample) => sum + sample.ms, 0);
  return ms === 0 ? 0 : (last.reduce((sum, sample) => sum + of(sample), 0) * 1_000) / ms;
}

/** The sale to look at first: one that is open, else the next to open, else the last. */
export function saleToWatch(items, now) {
  const rank = ({ opens_at: opens, closes_at: closes }) => (opens <= now && now < closes ? 0 : opens > now ? 1 : 2);
  const sorted = [...items].sort((a, b) => rank(a) - rank(b) || Math.abs(a.opens_at - now) - Math.abs(b.opens_at - now));
  return sorted[0]?.activity ?? null;
}
