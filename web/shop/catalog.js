// What is on sale, asked for at a polite pace: often while something can be bought and somebody
// looks, seldom before, never for a hidden page.

import { backoffMs, between } from "../backoff.js";
import { phase } from "./phase.js";

const OPEN_PACE_MS = [2_000, 5_000];
const WAITING_PACE_MS = [30_000, 60_000];
/** After the opening the first look at the numbers may wait: claims go first. */
const AFTER_OPENING_MS = [1_000, 4_000];

/** When to ask again (server time), given what is known. */
export function nextLookAt(now, activities, { failures = 0, retryAfterMs = 0, random = Math.random } = {}) {
  if (failures > 0) return now + Math.max(backoffMs(failures, random), retryAfterMs ?? 0);
  if (activities.some((activity) => phase(activity, now) === "open")) return now + between(...OPEN_PACE_MS, random);
  const opening = Math.min(...activities.filter((a) => phase(a, now) === "soon").map((a) => a.opens_at));
  return Math.min(now + between(...WAITING_PACE_MS, random), opening + between(...AFTER_OPENING_MS, random));
}

const ORDER = { open: 0, soon: 1, ended: 2 };

/** Open sales first, then the coming ones, then those that are over, the latest first. */
export function shopOrder(now) {
  const key = (activity) => {
    const stage = phase(activity, now);
    return [ORDER[stage], stage === "ended" ? -activity.closes_at : activity.opens_at, activity.id];
  };
  return (a, b) => {
    const [x, y] = [key(a), key(b)];
    const i = x.findIndex((part, at) => part !== y[at]);
    return i < 0 ? 0 : x[i] - y[i];
  };
}

export const inShopOrder = (activities, now) => [...activities].sort(shopOrder(now));

export class Catalog {
  #ask;
  #now;
  #asking = false;
  #at = 0;
  #failures = 0;
  activities = [];
  loaded = false;
  /** There is no such item. */
  missing = false;

  /** `ask()` resolves to `{activities}`. */
  constructor({ ask, now }) {
    this.#ask = ask;
    this.#now = now;
  }

  get stale() {
    return this.#failures > 1 && !this.missing;
  }

  item(itemId) {
    for (const activity of this.activities) {
      const item = activity.items.find(({ id }) => id === itemId);
      if (item) return { activity, item };
    }
    return null;
  }

  /** Called on every tick. True when something new was learnt. */
  async tend() {
    if (this.#asking || this.#now() < this.#at) return false;
    this.#asking = true;
    try {
      const { activities } = await this.#ask();
      this.activities = activities.map((activity) => ({ ...activity, items: activity.items ?? [] }));
      this.loaded = true;
      this.missing = false;
      this.#failures = 0;
      this.#at = nextLookAt(this.#now(), this.activities);
    } catch (problem) {
      this.missing = problem.status === 404;
      this.#failures += 1;
      this.#at = nextLookAt(this.#now(), this.activities, {
        failures: this.#failures, retryAfterMs: problem.retryAfterMs,
      });
    } finally {
      this.#asking = false;
    }
    return true;
  }

  /** The clock was set: a plan made with the old one may lie an hour off. */
  replan() {
    if (this.loaded) this.#at = Math.min(this.#at, nextLookAt(this.#now(), this.activities));
    else this.#at = 0;
  }

  lookNow() {
    this.#at = 0;
  }

  lookSoon() {
    this.#at = Math.min(this.#at, this.#now() + between(200, 1_200));
  }
}
