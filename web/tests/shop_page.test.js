// What the shop's page decides about its looks, without a browser.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bestOffset, ServerClock } from "../clock.js";
import { stageOf } from "../shop/activity_section.js";
import { heat, hottestFirst, Places } from "../shop/heat.js";
import { itemOf, saleOf } from "../shop/item_page.js";
import { SaleTokens } from "../shop/sale_token.js";
import { troubleOf } from "../shop/trouble.js";
import { loudest } from "../shop/won_bar.js";

const ITEM = { id: 1, stock: 100, left: 100, price: 80, origin_price: 100 };

test("the hottest item is the one of which most is gone; before the opening the best offer; what is gone is last", () => {
  const gone = { ...ITEM, id: 2, left: 20 };
  const cheap = { ...ITEM, id: 3, price: 50 };
  const out = { ...ITEM, id: 4, left: 0 };
  const order = [ITEM, out, cheap, gone].sort(hottestFirst).map(({ id }) => id);
  assert.deepEqual(order, [2, 3, 1, 4]);
  assert.ok(heat(gone) > heat(cheap) && heat(out) < heat(ITEM));
});

test("nothing changes its place while somebody looks, whatever is sold meanwhile", () => {
  const places = new Places();
  const first = places.inOrder([ITEM, { ...ITEM, id: 2, left: 50 }], hottestFirst);
  assert.deepEqual(first.map(({ id }) => id), [2, 1]);
  const later = places.inOrder([{ ...ITEM, id: 3, left: 1 }, { ...ITEM, left: 2 }, { ...ITEM, id: 2 }], hottestFirst);
  assert.deepEqual(later.map(({ id }) => id), [2, 1, 3], "new ones come behind");
});

test("the panel's colour follows the server's clock, and the last minute has its own", () => {
  const sale = { opens_at: 100_000, closes_at: 200_000, state: "published" };
  assert.equal(stageOf(sale, 39_999, true), "soon");
  assert.equal(stageOf(sale, 40_000, true), "final");
  assert.equal(stageOf(sale, 99_999, true), "final");
  assert.equal(stageOf(sale, 100_000, true), "open");
  assert.equal(stageOf({ ...sale, state: "paused" }, 100_000, true), "paused");
  assert.equal(stageOf({ ...sale, state: "paused" }, 99_000, true), "final");
  assert.equal(stageOf(sale, 200_000, true), "ended");
  assert.equal(stageOf(sale, 150_000, false), "soon", "nobody knows the time yet");
});

test("an address names an item, or none", () => {
  assert.equal(itemOf("/items/42"), 42);
  for (const other of ["/", "/items/", "/items/007", "/items/42/", "/items/x", "/items/-1"]) {
    assert.equal(itemOf(other), null, other);
  }
  const sale = saleOf({ activity_id: 7, opens_at: 1, closes_at: 2, state: "sold_out" });
  assert.deepEqual([sale.id, sale.state, sale.items.length], [7, "published", 1]);
  assert.equal(saleOf({ state: "paused" }).state, "paused");
  assert.equal(saleOf({ state: "paused", resumes_at: 7 }).resumes_at, 7);
});

test("the nearest deadline is the loudest; who only waits is told so", () => {
  const [late, soon] = [{ status: "unpaid", pay_deadline: 9 }, { status: "unpaid", pay_deadline: 5 }];
  const queued = { status: "queued" };
  assert.equal(loudest([queued, late, soon]), soon);
  assert.equal(loudest([{ status: "refunding" }, queued]), queued);
  assert.equal(loudest([]), null);
});

test("what is in the way is said in the order in which it matters", () => {
  assert.equal(troubleOf({ online: false, stale: true, expired: true }), "offline");
  assert.equal(troubleOf({ online: true, stale: true, expired: true }), "stale");
  assert.equal(troubleOf({ online: true, stale: false, expired: true }), "expired");
  assert.equal(troubleOf({ online: true, stale: false, expired: false }), null);
});

test("members hear from their token when they may buy", async () => {
  const tokens = new SaleTokens({
    fetchToken: async () => ({ token: "t", expires_at: 1_000, opens_at: 60 }), now: () => 50,
  });
  assert.equal(tokens.opensAt(1), undefined);
  await tokens.get(1);
  assert.equal(tokens.opensAt(1), 60);
});

test("the first answer sets the clock, quicker ones correct it", async () => {
  let local = 0;
  const trips = [400, 100, 20];
  const seen = [];
  const clock = new ServerClock(async () => {
    seen.push(clock.synced);
    const trip = trips.shift();
    local += trip;
    // The server reads its clock on arrival: all of the way is before that.
    return 1_000_000 + local;
  }, { local: () => local, wall: () => 0, pause: async () => {} });
  assert.equal(await clock.sync(3), true);
  assert.deepEqual(seen, [false, true, true]);
  assert.equal(clock.errorMs, 10);
  assert.equal(bestOffset([]), null);
});
