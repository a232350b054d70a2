// What a countdown shows, up to the moment itself.

import assert from "node:assert/strict";
import { test } from "node:test";
import { clockText, nextTick, split } from "../countdown.js";
import { phase } from "../shop/phase.js";

test("seconds are rounded up: one stands until the moment itself", () => {
  assert.deepEqual(split(1), { days: 0, hours: 0, minutes: 0, seconds: 1 });
  assert.deepEqual(split(1_000), { days: 0, hours: 0, minutes: 0, seconds: 1 });
  assert.deepEqual(split(1_001), { days: 0, hours: 0, minutes: 0, seconds: 2 });
  assert.deepEqual(split(0), { days: 0, hours: 0, minutes: 0, seconds: 0 });
  assert.deepEqual(split(-5_000), { days: 0, hours: 0, minutes: 0, seconds: 0 });
  assert.deepEqual(split((2 * 86_400 + 3 * 3_600 + 4 * 60 + 5) * 1_000), { days: 2, hours: 3, minutes: 4, seconds: 5 });
});

test("a deadline reads as a clock", () => {
  assert.equal(clockText(1_798_000), "29:58");
  assert.equal(clockText(3_723_000), "1:02:03");
  assert.equal(clockText(90_000_000), "25:00:00");
  assert.equal(clockText(-1), "00:00");
});

test("the phases of a sale meet at the instants the server uses", () => {
  const activity = { opens_at: 100, closes_at: 200, state: "published" };
  assert.equal(phase(activity, 99.9), "soon");
  assert.equal(phase(activity, 100), "open");
  assert.equal(phase(activity, 199.9), "open");
  assert.equal(phase(activity, 200), "ended");
  assert.equal(phase({ ...activity, state: "ended" }, 150), "ended");
});

test("the page is drawn exactly at an opening", () => {
  assert.equal(nextTick(10_250, [12_000]), 750);
  assert.equal(nextTick(11_990, [12_000, 12_700]), 10);
  assert.equal(nextTick(11_999.9, [12_000]), 5);
  assert.equal(nextTick(11_999.9, [12_000], 12_000.4), 5, "the opening passed, but was not drawn yet");
  assert.equal(nextTick(12_000, [13_000]), 1_000);
  assert.equal(nextTick(50_000, [12_000]), 1_000, "moments that passed do not count");
  // Walking from tick to tick never steps over the moment by more than the floor.
  let now = 0.3;
  while (now < 5_432) now += nextTick(now, [5_432]);
  assert.ok(now - 5_432 < 5);
});
