// Amounts are shown as their currency and language want them.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { decimalsOf, decimalText, formatMoney, percentOff } from "../money.js";

// Intl puts no-break spaces in; they are right on a page and a nuisance in a test.
const plain = (text) => text.replace(/\s/gu, " ");

test("minor units follow ISO 4217", () => {
  assert.equal(decimalsOf("CNY"), 2);
  assert.equal(decimalsOf("JPY"), 0);
  assert.equal(decimalsOf("KWD"), 3);
  assert.equal(decimalsOf("IQD"), 3, "where Intl alone would say 0");
  assert.equal(decimalsOf("CLF"), 4);
});

test("every currency of the server has the decimals that it has there", () => {
  const source = readFileSync(new URL("../../crates/sale/src/money.rs", import.meta.url), "utf8");
  const list = source.slice(source.indexOf("const ISO_4217"));
  const rows = [...list.slice(0, list.indexOf("];")).matchAll(/\(\s*(\d),\s*"([^"]+)"/g)];
  assert.deepEqual(rows.map(([, decimals]) => decimals), ["0", "2", "3", "4"]);
  for (const [, decimals, codes] of rows) {
    for (const code of codes.match(/[A-Z]{3}/g)) assert.equal(decimalsOf(code), Number(decimals), code);
  }
});

test("amounts stay exact", () => {
  assert.equal(decimalText(699_900, 2), "6999.00");
  assert.equal(decimalText(5, 2), "0.05");
  assert.equal(decimalText(0, 3), "0.000");
  assert.equal(decimalText(-1_234, 2), "-12.34");
  assert.equal(decimalText(1_980, 0), "1980");
  assert.equal(decimalText(Number.MAX_SAFE_INTEGER, 2), "90071992547409.91");
});

test("money is written the viewer's way", () => {
  assert.equal(plain(formatMoney(699_900, "CNY", "zh-CN")), "¥6,999.00");
  assert.equal(plain(formatMoney(699_900, "CNY", "en")), "CN¥6,999.00");
  assert.equal(plain(formatMoney(1_980, "JPY", "en")), "¥1,980");
  assert.equal(plain(formatMoney(1_500, "KWD", "en")), "KWD 1.500");
  assert.equal(plain(formatMoney(1_234_500, "EUR", "de")), "12.345,00 €");
});

test("large type drops the zeros of whole amounts only", () => {
  assert.equal(plain(formatMoney(699_900, "CNY", "zh-CN", { short: true })), "¥6,999");
  assert.equal(plain(formatMoney(699_950, "CNY", "zh-CN", { short: true })), "¥6,999.50");
  assert.equal(plain(formatMoney(5_000, "KWD", "en", { short: true })), "KWD 5");
});

test("nonsense is shown plainly and never as a number", () => {
  assert.equal(formatMoney(100, "no such", "en"), "1.00 no such");
  assert.equal(formatMoney(null, "CNY", "en"), "");
  assert.equal(formatMoney(1.5, "CNY", "en"), "");
});

test("an offer is never made to look better than it is", () => {
  assert.equal(percentOff(699_900, 799_900), 12);
  assert.equal(percentOff(999, 1_000), 0);
  assert.equal(percentOff(1_000, 1_000), 0);
  assert.equal(percentOff(1_000, null), 0);
  assert.equal(percentOff(1_000, undefined), 0);
});
