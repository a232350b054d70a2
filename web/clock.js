// The server's clock, seen from a page. Buttons light by this clock and never by the viewer's own:
// a phone that is two minutes fast would otherwise knock too early, one that is slow too late.
//
// One sample is a round trip: asked at `sentAt`, answered at `receivedAt` (both on the page's
// monotonic clock), the server read `serverMs` somewhere in between. The middle is the best guess and
// half the round trip bounds the error, so of several samples the quickest one is worth the most.

export function offsetOf({ sentAt, receivedAt, serverMs }) {
  const roundTrip = receivedAt - sentAt;
  return { offset: serverMs - (sentAt + roundTrip / 2), errorMs: roundTrip / 2 };
}

export function bestOffset(samples) {
  let best = null;
  for (const sample of samples) {
    // A monotonic clock cannot run backwards; such a sample is broken, not quick.
    if (!Number.isFinite(sample.serverMs) || sample.receivedAt < sample.sentAt) continue;
    const guess = offsetOf(sample);
    if (best === null || guess.errorMs < best.errorMs) best = guess;
  }
  return best;
}

/** Beyond this the page has slept (monotonic clocks stop with the machine) and must ask again. */
const SLEPT_MS = 1_500;
const PAUSE_BETWEEN_SAMPLES_MS = 80;
/** Half a round trip this short cannot be improved enough for a thumb to notice. */
const GOOD_ENOUGH_MS = 8;

export class ServerClock {
  #askTime;
  #local;
  #wall;
  #pause;
  #offset;
  #wallAtSync;
  #running = null;
  synced = false;
  errorMs = Infinity;

  /** `askTime` resolves to the server's `now_ms`. The rest is replaced in tests. */
  constructor(askTime, {
    local = () => performance.now(),
    wall = () => Date.now(),
    pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms)),
  } = {}) {
    this.#askTime = askTime;
    this.#local = local;
    this.#wall = wall;
    this.#pause = pause;
    this.#offset = wall() - local();
    this.#wallAtSync = wall() - local();
  }

  now() {
    return this.#local() + this.#offset;
  }

  slept() {
    return Math.abs(this.#wall() - this.#local() - this.#wallAtSync) > SLEPT_MS;
  }

  /** Asks up to `samples` times. A failed round leaves the clock as it was. */
  sync(samples = 4) {
    this.#running ??= this.#round(samples).finally(() => { this.#running = null; });
    return this.#running;
  }

  async #round(count) {
    const samples = [];
    let good = false;
    for (let i = 0; i < count; i += 1) {
      if (i > 0) await this.#pause(PAUSE_BETWEEN_SAMPLES_MS);
      const sentAt = this.#local();
      try {
        const serverMs = await this.#askTime();
        samples.push({ sentAt, receivedAt: this.#local(), serverMs });
      } catch {
        continue;
      }
      // The first answer is good enough to begin with; better ones correct it.
      const best = bestOffset(samples);
      if (best === null) continue;
      this.#offset = best.offset;
      this.#wallAtSync = this.#wall() - this.#local();
      this.errorMs = best.errorMs;
      this.synced = true;
      good = true;
      if (samples.length > 1 && best.errorMs < GOOD_ENOUGH_MS) break;
    }
    return good;
  }
}
