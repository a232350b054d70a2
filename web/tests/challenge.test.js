// Challenges are solved as the server checks them, and the page asks for what the sale wants.

import assert from "node:assert/strict";
import { test } from "node:test";
import { pbkdf2Sync } from "node:crypto";
import { solution as solutionFor, solved } from "../shop/challenge.js";
import { saleToken as tokenOf } from "../shop/token_request.js";

/** As the shop's page puts the two together. */
const saleToken = ({ read, ...rest }) => tokenOf({ ...rest, solve: (asked) => solutionFor({ ...asked, read }) });

const PARAMETERS = {
  algorithm: "PBKDF2/SHA-256", cost: 2, data: { issued: 1, item: 42 }, expiresAt: 9, keyLength: 32,
  keyPrefix: "00", nonce: "00112233445566778899aabbccddeeff", salt: "ffeeddccbbaa99887766554433221100",
};
const CHALLENGE = { kind: "pow", parameters: PARAMETERS, signature: "ab" };

test("a number whose key begins as it should is found, and the challenge goes back as it came", async () => {
  const heard = [];
  const { challenge, solution } = JSON.parse(atob(await solved(CHALLENGE, (part) => heard.push(part))));
  assert.deepEqual(challenge, { parameters: PARAMETERS, signature: "ab" });
  const password = Buffer.alloc(20);
  Buffer.from(PARAMETERS.nonce, "hex").copy(password);
  password.writeUInt32BE(solution.counter, 16);
  const key = pbkdf2Sync(password, Buffer.from(PARAMETERS.salt, "hex"), 2, 32, "sha256").toString("hex");
  assert.equal(solution.derivedKey, key);
  assert.ok(key.startsWith("00"));
  assert.equal(heard.at(-1), 1);
});

function shop(answers) {
  const asked = [];
  const ask = async (method, path, options = {}) => {
    asked.push([path, options.body]);
    const answer = answers.shift();
    if (answer instanceof Error) throw answer;
    return answer;
  };
  return { ask, asked };
}
const refused = (challenge, reason) =>
  Object.assign(new Error(), { code: "bad_challenge", body: { challenge, reason } });

test("a sale without a challenge is asked once; one that has got one meanwhile says so", async () => {
  const plain = shop([{ token: "t" }]);
  assert.equal((await saleToken({ ask: plain.ask, itemId: 42 })).token, "t");
  assert.deepEqual(plain.asked, [["/items/42/token", undefined]]);
  const changed = shop([refused("pow", "missing"), CHALLENGE, { token: "t" }]);
  assert.equal((await saleToken({ ask: changed.ask, itemId: 42 })).token, "t");
  assert.deepEqual(changed.asked[1], ["/items/42/challenge", { kind: "pow" }]);
  assert.ok(changed.asked[2][1].altcha.length > 100);
});

test("letters are read where somebody can, and worked for where nobody does", async () => {
  const captcha = { ...CHALLENGE, kind: "captcha", codeChallenge: { image: "data:," } };
  const read = shop([captcha, { token: "t" }]);
  await saleToken({ ask: read.ask, itemId: 42, kind: "captcha", read: async () => "K7M3P" });
  assert.equal(read.asked[1][1].code, "K7M3P");
  const blind = shop([captcha, CHALLENGE, { token: "t" }]);
  await saleToken({ ask: blind.ask, itemId: 42, kind: "captcha", read: async () => null });
  assert.deepEqual(blind.asked[1], ["/items/42/challenge", { kind: "pow" }]);
  const wrong = shop([captcha, refused("captcha", "wrong_code"), captcha, { token: "t" }]);
  await saleToken({ ask: wrong.ask, itemId: 42, kind: "captcha", read: async () => "AAAAA" });
  assert.equal(wrong.asked.length, 4);
});
