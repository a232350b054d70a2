// One press of the button, whatever the answers are and whichever get lost.

import assert from "node:assert/strict";
import { test } from "node:test";
import { claim, newKey } from "../shop/claim.js";
import { Problem } from "../problem.js";

function gate(...answers) {
  const seen = { tokens: [], slept: 0, dropped: 0 };
  return {
    seen,
    press: () => claim({
      itemId: 42,
      tokens: { get: async () => `token${seen.dropped}`, drop: () => { seen.dropped += 1; } },
      send: async (token) => {
        seen.tokens.push(token);
        const answer = answers.shift();
        if (answer instanceof Problem) throw answer;
        return answer;
      },
      sleep: async () => { seen.slept += 1; },
    }),
  };
}
const lost = () => new Problem({ code: "timeout", unknown: true });
const refusal = (code) => new Problem({ code, status: 403 });

test("a lost answer is asked for again", async () => {
  const { press, seen } = gate(lost(), lost(), { order_no: "SK1" });
  assert.deepEqual(await press(), { order_no: "SK1" });
  assert.equal(seen.slept, 2);
});

test("after four silences the buyer is told, and told that it is unknown", async () => {
  const { press, seen } = gate(lost(), lost(), lost(), lost());
  await assert.rejects(press(), { code: "timeout", unknown: true });
  assert.equal(seen.tokens.length, 4);
});

test("a refused token is replaced once", async () => {
  const { press, seen } = gate(refusal("bad_token"), { order_no: "SK1" });
  await press();
  assert.deepEqual(seen.tokens, ["token0", "token1"]);
  const again = gate(refusal("bad_token"), refusal("bad_token"));
  await assert.rejects(again.press(), { code: "bad_token" });
  assert.equal(again.seen.tokens.length, 2);
});

test("a refusal is final", async () => {
  for (const code of ["sold_out", "already_bought", "ended", "too_hot", "busy"]) {
    const { press, seen } = gate(refusal(code));
    await assert.rejects(press(), { code });
    assert.equal(seen.tokens.length, 1);
  }
});

test("keys differ", () => {
  assert.match(newKey(), /^[0-9a-f]{32}$/);
  assert.notEqual(newKey(), newKey());
});
