// The server's clock is found from round trips of any quality.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bestOffset, ServerClock } from "../clock.js";

test("the quickest round trip wins, because half of it bounds the error", () => {
  const slow = { sentAt: 0, receivedAt: 400, serverMs: 10_390 };
  const quick = { sentAt: 1_000, receivedAt: 1_020, serverMs: 11_010 };
  assert.deepEqual(bestOffset([slow, quick]), { offset: 10_000, errorMs: 10 });
});

test("broken samples are left out, and none is no answer", () => {
  assert.equal(bestOffset([]), null);
  assert.equal(bestOffset([{ sentAt: 5, receivedAt: 4, serverMs: 1 }, { sentAt: 0, receivedAt: 1, serverMs: NaN }]), null);
});

/** A page whose own clock is an hour fast, and a network with the given one-way delays. */
function page(delays, { serverAhead = 1_000_000 } = {}) {
  let local = 0;
  const wallAhead = serverAhead + 3_600_000;
  const clock = new ServerClock(async () => {
    const delay = delays.shift();
    if (delay === undefined) throw new Error("offline");
    local += delay;
    const serverMs = local + serverAhead;
    local += delay;
    return serverMs;
  }, { local: () => local, wall: () => local + wallAhead, pause: async (ms) => { local += ms; } });
  return { clock, serverNow: () => local + serverAhead, pass: (ms) => { local += ms; } };
}

test("a viewer's clock that is an hour fast does not matter after a sync", async () => {
  const { clock, serverNow, pass } = page([200, 30, 90, 60]);
  assert.equal(clock.synced, false);
  assert.equal(await clock.sync(4), true);
  assert.equal(clock.now(), serverNow());
  assert.equal(clock.errorMs, 30);
  pass(5_000);
  assert.equal(clock.now(), serverNow());
});

test("a sync that fails leaves the clock as it was", async () => {
  const { clock, serverNow } = page([10]);
  await clock.sync(1);
  assert.equal(await clock.sync(3), false);
  assert.equal(clock.synced, true);
  assert.equal(clock.now(), serverNow());
});

test("a lost sample does not spoil the round", async () => {
  let asked = 0;
  const clock = new ServerClock(async () => { asked += 1; if (asked === 1) throw new Error("lost"); return 500; },
    { local: () => 100, wall: () => 0, pause: async () => {} });
  assert.equal(await clock.sync(3), true);
  assert.equal(clock.now(), 500);
});

test("a machine that slept is noticed", async () => {
  let wall = 1_000;
  const clock = new ServerClock(async () => 5, { local: () => 0, wall: () => wall, pause: async () => {} });
  await clock.sync(1);
  assert.equal(clock.slept(), false);
  wall += 60_000;
  assert.equal(clock.slept(), true);
});
