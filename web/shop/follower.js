// Keeps the order book up to date: by the event stream while something may change, by polling when
// the stream is not there, and by a slow poll beside it because a push is only a hint.

import { between } from "../backoff.js";
import { followEvents } from "../event_stream.js";
import { receiptFor, receiptsOf } from "./receipts.js";

const QUEUED_POLL_MS = { alone: [800, 1_600], besideStream: [4_000, 6_000] };
const LIST_POLL_MS = { alone: [10_000, 15_000], besideStream: [45_000, 60_000] };
/** Another instance may not have heard of a claim yet; only after this is "not found" believed. */
const VANISHED_AFTER_MS = 8_000;
/** How far back receipts are asked for on arrival; older claims are in the list. */
const RECENT_MS = 10 * 60_000;
const RECENT_MAX = 5;
/** Nobody looks at a cashier for longer; after that the usual pace will do. */
const EXPECTED_MS = 10 * 60_000;

/** When to ask for the list again: at the usual pace, but soon after an order's deadline has passed. */
export function nextListAt(now, orders, pace, random = Math.random) {
  const usual = now + between(...pace, random);
  const deadlines = orders.filter((o) => o.status === "unpaid" && o.pay_deadline).map((o) => o.pay_deadline);
  const afterDeadline = Math.min(...deadlines) + between(1_000, 3_000, random);
  return Math.min(usual, Math.max(afterDeadline, now + between(3_000, 5_000, random)));
}

export class Follower {
  #buyer;
  #book;
  #now;
  #onNews;
  #stream = null;
  #connected = false;
  #timer = null;
  #listAt = 0;
  #claimedAt = new Map();
  #presented = new Set();
  /** Orders whose buyers are paying right now, and until when they are looked at often. */
  #expected = new Map();

  constructor({ buyer, book, now, onNews }) {
    this.#buyer = buyer;
    this.#book = book;
    this.#now = now;
    this.#onNews = onNews;
  }

  /** A buyer came or went: nothing of the former may stay. */
  restart() {
    this.#stop();
    this.#book.clear();
    this.#claimedAt.clear();
    this.#presented.clear();
    this.#expected.clear();
    this.#onNews();
    if (this.#buyer.signedIn) this.refresh();
  }

  /** A claim was just admitted. */
  admitted(order, etaMs) {
    this.#claimedAt.set(order.order_no, this.#now());
    this.#hear(order);
    this.#wake(Math.max(300, Math.min(etaMs ?? 0, 5_000)));
  }

  /** The whole list, plus what was claimed a moment ago and may not be in the list yet. */
  async refresh() {
    const user = this.#buyer.user;
    try {
      const { orders } = await this.#buyer.ask("GET", "/orders");
      if (user !== this.#buyer.user) return;
      for (const order of orders) this.#book.hear(order);
      this.#onNews();
      const recent = receiptsOf(user)
        .filter((r) => r.claimed_at > this.#now() - RECENT_MS && !this.#book.get(r.order_no))
        .slice(-RECENT_MAX);
      await Promise.all(recent.map((r) => this.look(r.order_no)));
    } catch { /* the next round asks again */ }
    this.#listAt = nextListAt(this.#now(), this.#book.moving(), this.#pace(LIST_POLL_MS));
    this.#wake(between(...this.#pace(QUEUED_POLL_MS)));
  }

  /** One order, now. */
  async look(orderNo) {
    const user = this.#buyer.user;
    try {
      const order = await this.#buyer.ask("GET", `/orders/${encodeURIComponent(orderNo)}`);
      if (user === this.#buyer.user) this.#hear(order);
    } catch (problem) {
      if (problem.status === 404) await this.#present(user, orderNo);
    }
  }

  /** Somebody pays this order now: a push may be lost, so it is looked at beside it. */
  expect(orderNo) {
    this.#expected.set(orderNo, this.#now() + EXPECTED_MS);
    this.#wake(between(...QUEUED_POLL_MS.alone));
  }

  /** The page was hidden or shown. */
  visibilityChanged(visible) {
    if (!this.#buyer.signedIn) return;
    if (visible) this.refresh();
    else if (!this.#book.moving().some((order) => order.status === "queued")) this.#stop();
  }

  #hear(order) {
    if (this.#book.hear(order)) this.#onNews(order);
  }

  /** The server does not know a claim it once admitted: show it the receipt, once. */
  async #present(user, orderNo) {
    const receipt = receiptFor(user, orderNo);
    const age = this.#now() - (this.#claimedAt.get(orderNo) ?? 0);
    if (!receipt || age < VANISHED_AFTER_MS || this.#presented.has(orderNo)) return;
    this.#presented.add(orderNo);
    try {
      const order = await this.#buyer.ask("POST", "/receipts", { body: { receipt } });
      if (user === this.#buyer.user && order?.order_no && order.status) this.#hear(order);
    } catch { /* the order stays as it was last heard of */ }
  }

  #pace(range) {
    return this.#connected ? range.besideStream : range.alone;
  }

  #wake(ms) {
    clearTimeout(this.#timer);
    this.#timer = null;
    const moving = this.#buyer.signedIn ? this.#book.moving() : [];
    const urgent = moving.some((order) => order.status === "queued");
    if (moving.length === 0 || (document.hidden && !urgent)) {
      this.#stop();
      return;
    }
    this.#listen();
    this.#timer = setTimeout(() => this.#round(), ms);
  }

  async #round() {
    const moving = this.#book.moving();
    const expected = ({ order_no: no, status }) => status === "unpaid" && this.#expected.get(no) > this.#now();
    const urgent = moving.filter((order) => order.status === "queued" || expected(order));
    await Promise.all(urgent.slice(0, RECENT_MAX).map((order) => this.look(order.order_no)));
    if (this.#now() >= this.#listAt) await this.refresh();
    else this.#wake(between(...this.#pace(QUEUED_POLL_MS)));
  }

  #listen() {
    if (this.#stream) return;
    const abort = new AbortController();
    this.#stream = abort;
    followEvents({
      path: "/api/v1/events",
      bearer: this.#buyer.bearer,
      signal: abort.signal,
      onState: (connected) => {
        if (abort.signal.aborted) return;
        // The stream tells what happened while nobody listened; asking is quicker if it did not last.
        if (connected && !this.#connected) this.#wake(0);
        this.#connected = connected;
      },
      onEvent: ({ event, data }) => {
        if (abort.signal.aborted) return;
        // There is more than the stream tells: the list knows it all.
        if (event === "look_again") this.refresh();
        if (event !== "order") return;
        try {
          this.#hear(JSON.parse(data));
        } catch { /* not for us */ }
      },
    });
  }

  #stop() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#stream?.abort();
    this.#stream = null;
    this.#connected = false;
  }
}
