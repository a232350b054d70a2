// The decisions of the shop page, without a browser.

import assert from "node:assert/strict";
import { test } from "node:test";
import { backoffMs } from "../backoff.js";
import { buyState, coolDownMs, waitReason } from "../shop/buy_state.js";
import { isUserId, jwtClaims } from "../shop/buyer.js";
import { inShopOrder, nextLookAt } from "../shop/catalog.js";
import { nextListAt } from "../shop/follower.js";
import { OrderBook } from "../shop/order_book.js";
import { keepReceipt, pendingOf, keepPending, dropPending, receiptFor, receiptsOf } from "../shop/receipts.js";

const OPEN = { now: 150, synced: true, opensAt: 100, closesAt: 200, activityState: "published", itemState: "ready", left: 5, coolUntil: 0 };
const state = (facts) => buyState({ ...OPEN, ...facts });

test("the button through a sale", () => {
  assert.equal(state({ now: 99.9 }), "waiting");
  assert.equal(state({ now: 100 }), "ready");
  assert.equal(state({ sending: true }), "queueing");
  assert.equal(state({ orderStatus: "queued" }), "queueing");
  assert.equal(state({ orderStatus: "unpaid", left: 0 }), "bought");
  assert.equal(state({ orderStatus: "paid", now: 500 }), "bought");
  assert.equal(state({ left: 0 }), "sold_out");
  assert.equal(state({ now: 200 }), "ended");
  assert.equal(state({ activityState: "ended" }), "ended");
  assert.equal(state({ itemState: "ended" }), "ended");
});

test("the button never lights by the viewer's own clock", () => {
  assert.equal(state({ synced: false }), "waiting");
  assert.equal(waitReason({ ...OPEN, synced: false }), "clock");
});

test("a button waits while the sale is paused or it cools down, and says why", () => {
  assert.equal(state({ activityState: "paused" }), "waiting");
  assert.equal(waitReason({ ...OPEN, activityState: "paused" }), "paused");
  assert.equal(state({ coolUntil: 151 }), "waiting");
  assert.equal(waitReason(OPEN), "cooling");
  assert.equal(state({ coolUntil: 150 }), "ready");
  assert.equal(state({ left: undefined }), "ready", "an unknown rest is not an empty shelf");
});

test("five seconds of rest after a refusal, more if the server asks, within reason", () => {
  assert.equal(coolDownMs({ code: "busy", retryAfterMs: null }), 5_000);
  assert.equal(coolDownMs({ code: "too_hot", retryAfterMs: 9_000 }), 9_000);
  assert.equal(coolDownMs({ code: "too_hot", retryAfterMs: 1_000 }), 5_000);
  assert.equal(coolDownMs({ code: "too_hot", retryAfterMs: 86_400_000 }), 120_000);
  assert.equal(coolDownMs({ code: "not_started", retryAfterMs: null }), 1_000, "the early are corrected, not punished");
});

test("old news of an order does not turn it back", () => {
  const book = new OrderBook();
  assert.equal(book.hear({ order_no: "SK1", item_id: 42, status: "unpaid" }), true);
  assert.equal(book.hear({ order_no: "SK1", item_id: 42, status: "queued" }), false);
  assert.equal(book.hear({ order_no: "SK1", item_id: 42, status: "unpaid" }), false, "nothing new");
  assert.equal(book.hear({ order_no: "SK1", status: "paid", amount: 5 }), true);
  assert.equal(book.hear({ order_no: "SK1", status: "unpaid" }), false);
  assert.deepEqual(book.get("SK1"), { order_no: "SK1", item_id: 42, status: "paid", amount: 5 });
});

test("a closed order frees the buyer to try again, and a late refund changes nothing", () => {
  const book = new OrderBook();
  book.hear({ order_no: "SK1", item_id: 42, status: "closed" });
  assert.equal(book.liveOf(42), null);
  book.hear({ order_no: "SK2", item_id: 42, status: "queued" });
  book.hear({ order_no: "SK1", item_id: 42, status: "refunding" });
  assert.equal(book.liveOf(42).order_no, "SK2");
});

test("orders that need the buyer come first, newest first among equals", () => {
  const book = new OrderBook();
  for (const [order_no, status] of [["SK9", "closed"], ["SK10", "paid"], ["SK2", "unpaid"], ["SK3", "unpaid"]]) book.hear({ order_no, status });
  assert.deepEqual(book.shown().map((o) => o.order_no), ["SK3", "SK2", "SK10", "SK9"]);
});

test("the list is asked for soon after a deadline, otherwise at the usual pace", () => {
  const pace = [10_000, 10_000];
  const half = () => 0.5;
  assert.equal(nextListAt(0, [], pace, half), 10_000);
  assert.equal(nextListAt(0, [{ status: "unpaid", pay_deadline: 5_000 }], pace, half), 7_000);
  assert.equal(nextListAt(0, [{ status: "unpaid", pay_deadline: -60_000 }], pace, half), 4_000);
  assert.equal(nextListAt(0, [{ status: "unpaid", pay_deadline: 900_000 }], pace, half), 10_000);
});

test("receipts and unanswered keys belong to their buyer", () => {
  keepReceipt("u1", { order_no: "SK1", receipt: "r1", item_id: 42, claimed_at: 5 });
  keepReceipt("u2", { order_no: "SK2", receipt: "r2", item_id: 42, claimed_at: 6 });
  assert.equal(receiptFor("u1", "SK1"), "r1");
  assert.equal(receiptFor("u1", "SK2"), null);
  for (let i = 0; i < 300; i += 1) keepReceipt("u3", { order_no: `SK3${i}`, receipt: "r" });
  assert.equal(receiptsOf("u3").length, 100, "and there is an end to them");
  keepPending("u1", 42, { key: "k", quantity: 1 });
  assert.equal(pendingOf("u2", 42), null);
  assert.equal(pendingOf("u1", 42).key, "k");
  dropPending("u1", 42);
  assert.equal(pendingOf("u1", 42), null);
});

test("the catalog is asked for every 2 to 5 s while open, seldom before, just after the opening", () => {
  const sale = { opens_at: 100_000, closes_at: 200_000, state: "published" };
  assert.equal(nextLookAt(150_000, [sale], { random: () => 0 }), 152_000);
  assert.equal(nextLookAt(150_000, [sale], { random: () => 1 }), 155_000);
  assert.equal(nextLookAt(0, [sale], { random: () => 0.5 }), 45_000);
  assert.equal(nextLookAt(90_000, [sale], { random: () => 0 }), 101_000);
  assert.equal(nextLookAt(0, [], { random: () => 0 }), 30_000);
  assert.equal(nextLookAt(0, [sale], { failures: 1, retryAfterMs: 9_000, random: () => 0 }), 9_000);
});

test("open sales stand first, then the next to open, then the last to close", () => {
  const sale = (id, opens_at, closes_at) => ({ id, opens_at, closes_at, state: "published" });
  const order = inShopOrder([sale(1, 0, 10), sale(2, 300, 400), sale(3, 0, 50), sale(4, 200, 400), sale(5, 60, 500)], 100);
  assert.deepEqual(order.map(({ id }) => id), [5, 4, 2, 3, 1]);
});

test("waiting grows, has an end, and is never in step", () => {
  assert.equal(backoffMs(0, () => 1), 1_000);
  assert.equal(backoffMs(3, () => 1), 8_000);
  assert.equal(backoffMs(3, () => 0), 4_000);
  assert.equal(backoffMs(1_000, () => 1), 30_000);
});

test("a buyer's name is read from the shop's token, whatever its script", () => {
  const jwt = `h.${Buffer.from(JSON.stringify({ sub: "买家7", exp: 9 })).toString("base64url")}.s`;
  assert.deepEqual(jwtClaims(jwt), { sub: "买家7", exp: 9 });
  assert.deepEqual(jwtClaims("not a token"), {});
  assert.ok(isUserId("u1002") && isUserId("买家") && isUserId("a".repeat(64)));
  assert.ok(!isUserId("") && !isUserId("a b") && !isUserId("a".repeat(65)) && !isUserId("a\u0000"));
});
