// The button for other people's pages: what it says. What it does a real browser tells.

import assert from "node:assert/strict";
import { test } from "node:test";
import { buttonWords, inWords } from "../embed/words.js";

test("both languages say the same things", () => {
  assert.deepEqual(Object.keys(buttonWords.en), Object.keys(buttonWords.zh));
  for (const [key, text] of Object.entries(buttonWords.en)) {
    const holes = (words) => words.match(/\{\w+\}/g) ?? [];
    assert.deepEqual(holes(text), holes(buttonWords.zh[key]), key);
  }
});

test("there are words for every state of the button and every reason to wait", () => {
  for (const key of ["ready", "opening", "clock", "paused", "cooling", "queueing", "sold_out", "ended", "unpaid", "paid"]) {
    assert.ok(inWords("zh", key, { time: "1", seconds: 1 }), key);
  }
  assert.equal(inWords("en", "opening", { time: "00:05" }), "Opens in 00:05");
});
