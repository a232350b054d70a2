// When sale tokens are fetched and when they are dropped.

import assert from "node:assert/strict";
import { test } from "node:test";
import { SaleTokens, tokenFetchAt } from "../shop/sale_token.js";

const SALE = { opensAt: 1_000_000, closesAt: 2_000_000 };

test("a waiting crowd asks 30 to 10 seconds before the opening, spread out", () => {
  const at = (r) => tokenFetchAt({ now: 0, ...SALE, random: () => r });
  assert.equal(at(0), 990_000);
  assert.equal(at(0.5), 980_000);
  assert.equal(at(1), 970_000);
});

test("who comes in the last seconds still asks before the opening", () => {
  for (const r of [0, 0.5, 0.999]) {
    const at = tokenFetchAt({ now: 999_000, ...SALE, random: () => r });
    assert.ok(at >= 999_000 && at < 1_000_000, `${at}`);
  }
});

test("who comes after the opening asks within a second, after the closing never", () => {
  assert.equal(tokenFetchAt({ now: 1_500_000, ...SALE, random: () => 0.5 }), 1_500_400);
  assert.equal(tokenFetchAt({ now: 2_000_000, ...SALE }), null);
});

test("a token is renewed before it expires, but not if it outlives the sale", () => {
  const token = { fetchedAt: 980_000, expiresAt: 1_280_000 };
  assert.equal(tokenFetchAt({ now: 990_000, ...SALE, token, random: () => 1 }), 1_260_000);
  assert.equal(tokenFetchAt({ now: 990_000, ...SALE, token, random: () => 0 }), 1_270_000);
  assert.equal(tokenFetchAt({ now: 1_300_000, ...SALE, token, random: () => 0 }), 1_300_000, "overdue: now");
  assert.equal(tokenFetchAt({ now: 990_000, ...SALE, token: { ...token, expiresAt: 2_000_000 } }), null);
  const brief = { fetchedAt: 980_000, expiresAt: 989_000 };
  assert.equal(tokenFetchAt({ now: 980_000, ...SALE, token: brief, random: () => 1 }), 986_000, "the last third of its life");
});

function shop({ fail = [] } = {}) {
  const state = { now: 0, asked: [] };
  const tokens = new SaleTokens({
    now: () => state.now,
    random: () => 0.5,
    fetchToken: async (item) => {
      state.asked.push(state.now);
      const problem = fail.shift();
      if (problem) throw problem;
      return { token: `t${state.asked.length}-${item}`, expires_at: state.now + 60_000 };
    },
  });
  return { state, tokens };
}
const settle = () => new Promise((resolve) => setImmediate(resolve));

async function walk({ state, tokens }, until) {
  for (; state.now < until; state.now += 1_000) {
    tokens.tend(42, SALE);
    await settle();
  }
}

test("ticking every second asks once before the opening and then at each renewal", async () => {
  const s = shop();
  await walk(s, 1_000_000);
  assert.deepEqual(s.state.asked, [980_000]);
  await walk(s, 1_060_000);
  assert.deepEqual(s.state.asked, [980_000, 1_025_000]);
  assert.equal(await s.tokens.get(42), "t2-42", "the click finds it at hand");
});

test("a refused fetch is tried again later, not on every tick, and as late as Retry-After says", async () => {
  const s = shop({ fail: [{ retryAfterMs: 6_000 }] });
  await walk(s, 1_000_000);
  assert.deepEqual(s.state.asked, [980_000, 986_000]);
});

test("a click without a token fetches one, two clicks fetch one", async () => {
  const s = shop();
  assert.deepEqual(await Promise.all([s.tokens.get(7), s.tokens.get(7)]), ["t1-7", "t1-7"]);
  assert.equal(s.state.asked.length, 1);
});

test("an expired or dropped token is not used", async () => {
  const s = shop();
  await s.tokens.get(7);
  s.state.now += 59_000;
  assert.equal(await s.tokens.get(7), "t2-7");
  s.tokens.drop(7);
  assert.equal(await s.tokens.get(7), "t3-7");
});

test("one buyer's token never serves the next, even if it arrives late", async () => {
  const s = shop();
  const late = s.tokens.get(7);
  s.tokens.clear();
  await late;
  assert.equal(await s.tokens.get(7), "t2-7");
});
