// Sale tokens: what the hot path checks instead of a login. They are fetched before the opening, each
// buyer at a random moment, so that the opening instant carries claims and nothing else.

import { backoffMs } from "../backoff.js";

const EARLIEST_BEFORE_OPENING_MS = 30_000;
const LATEST_BEFORE_OPENING_MS = 10_000;
/** Who comes late spreads out too, over at most this. */
const LATECOMER_SPREAD_MS = 5_000;
const OPEN_SPREAD_MS = 800;
/** A token this near its end might end on the way. */
const EXPIRY_MARGIN_MS = 2_000;
const RENEW_BEFORE_EXPIRY_MS = 20_000;

/** When to fetch a token (server time), or null if none will be needed. */
export function tokenFetchAt({ now, opensAt, closesAt, token = null, random = Math.random }) {
  if (now >= closesAt) return null;
  if (token) {
    if (token.expiresAt >= closesAt) return null;
    // Short-lived tokens are renewed in the last third of their life, not all the time.
    const lead = Math.min(RENEW_BEFORE_EXPIRY_MS, (token.expiresAt - token.fetchedAt) / 3);
    return Math.max(now, token.expiresAt - lead * (0.5 + 0.5 * random()));
  }
  if (now >= opensAt) return now + OPEN_SPREAD_MS * random();
  const spread = EARLIEST_BEFORE_OPENING_MS - LATEST_BEFORE_OPENING_MS;
  const planned = opensAt - LATEST_BEFORE_OPENING_MS - spread * random();
  if (planned >= now) return planned;
  return now + Math.min(LATECOMER_SPREAD_MS, (opensAt - now) / 2) * random();
}

export class SaleTokens {
  #fetchToken;
  #now;
  #random;
  #tokens = new Map();
  #fetching = new Map();
  #plans = new Map();
  /** Tokens of one buyer are of no use to the next; answers still on the way are dropped by this. */
  #buyer = 0;

  /** `fetchToken(itemId)` resolves to `{token, expires_at}`. */
  constructor({ fetchToken, now, random = Math.random }) {
    this.#fetchToken = fetchToken;
    this.#now = now;
    this.#random = random;
  }

  clear() {
    this.#buyer += 1;
    this.#tokens.clear();
    this.#fetching.clear();
    this.#plans.clear();
  }

  /** From when the token's buyer may claim, if there is a token that says so. */
  opensAt(itemId) {
    return this.#tokens.get(itemId)?.opensAt;
  }

  drop(itemId) {
    this.#tokens.delete(itemId);
  }

  /** A token that is good now: the one at hand, or a new one. */
  async get(itemId) {
    const token = this.#tokens.get(itemId);
    if (token && token.expiresAt - EXPIRY_MARGIN_MS > this.#now()) return token.token;
    return this.#fetch(itemId);
  }

  #fetch(itemId) {
    const running = this.#fetching.get(itemId);
    if (running) return running;
    const buyer = this.#buyer;
    const fetching = this.#fetchToken(itemId).then((answer) => {
      if (buyer === this.#buyer) {
        this.#tokens.set(itemId, {
          token: answer.token, expiresAt: answer.expires_at, fetchedAt: this.#now(), opensAt: answer.opens_at,
        });
        this.#plans.delete(itemId);
      }
      return answer.token;
    }).finally(() => {
      if (this.#fetching.get(itemId) === fetching) this.#fetching.delete(itemId);
    });
    this.#fetching.set(itemId, fetching);
    return fetching;
  }

  /** Called on every tick for each item the buyer looks at; fetches when the item's moment has come. */
  tend(itemId, { opensAt, closesAt }) {
    const now = this.#now();
    let plan = this.#plans.get(itemId);
    // The moment is drawn once and kept, or a tick every second would always find an early one. A
    // sale that was moved gets a new moment.
    if (!plan || plan.opensAt !== opensAt || plan.closesAt !== closesAt) {
      const token = this.#tokens.get(itemId);
      const at = tokenFetchAt({ now, opensAt, closesAt, token, random: this.#random });
      plan = { at, opensAt, closesAt, failures: 0 };
      this.#plans.set(itemId, plan);
    }
    if (plan.at === null || now < plan.at || this.#fetching.has(itemId)) return;
    this.#fetch(itemId).catch((problem) => {
      const wait = Math.max(backoffMs(plan.failures, this.#random), problem.retryAfterMs ?? 0);
      plan.at = this.#now() + wait;
      plan.failures += 1;
    });
  }
}
