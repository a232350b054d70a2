// Every problem of the server has words for the buyer.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Problem, problemFrom, problemText, problemWords, retryAfterMs } from "../problem.js";

test("every code a claim can be answered with has words in both languages", () => {
  const codes = ["sold_out", "already_bought", "not_started", "ended", "bad_token", "invalid", "too_hot", "rate_limited", "busy", "unauthorized"];
  for (const code of codes) {
    const problem = new Problem({ code, body: { detail: "raw", field: "quantity" } });
    for (const lang of ["en", "zh"]) assert.notEqual(problemText(problem, lang), "raw", `${code} in ${lang}`);
    assert.notEqual(problemText(problem, "en"), problemText(problem, "zh"));
  }
  assert.deepEqual(Object.keys(problemWords.en), Object.keys(problemWords.zh));
});

test("an invalid field is named", () => {
  assert.equal(problemText(new Problem({ code: "invalid", body: { field: "quantity" } }), "en"), "That was not accepted: quantity.");
});

test("an unknown code is told in the server's words, which are in the right language already", () => {
  assert.equal(problemText(problemFrom(409, { code: "moon_phase", detail: "Wrong moon." }), "zh"), "Wrong moon.");
  assert.equal(problemText(problemFrom(500, {}), "en"), "Something went wrong (500).");
});

test("what did not come from our server is understood by its status", () => {
  assert.equal(problemFrom(503, "<html>").code, "busy");
  assert.equal(problemFrom(429, null, 3_000).retryAfterMs, 3_000);
  assert.equal(problemFrom(401, {}).code, "unauthorized");
});

test("a gateway that gave up does not know what happened; a server that says busy does", () => {
  assert.equal(problemFrom(504, {}).unknown, true);
  assert.equal(problemFrom(502, {}).unknown, true);
  assert.equal(problemFrom(503, { code: "busy" }).unknown, false);
});

test("Retry-After is seconds or a date", () => {
  assert.equal(retryAfterMs("7"), 7_000);
  assert.equal(retryAfterMs("Thu, 01 Jan 1970 00:00:10 GMT", 4_000), 6_000);
  assert.equal(retryAfterMs("Thu, 01 Jan 1970 00:00:10 GMT", 60_000), 0);
  assert.equal(retryAfterMs(null), null);
  assert.equal(retryAfterMs("soon"), null);
});
