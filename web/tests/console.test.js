// The console's own reckoning: what the stream says, where claims were stopped, and what a table of items means.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { cells, itemsOf, minor } from "../console/csv.js";
import { CURRENCIES } from "../console/currencies.js";
import { Live, funnelOf, rate, reasonsOf, saleToWatch } from "../console/live.js";
import { command, shapeOf } from "../console/rehearse.js";
import { fromLocal, toLocal } from "../console/times.js";
import { pausesBefore } from "../console/pausing.js";
import { inWords } from "../console/text.js";
import { words } from "../console/words.js";
import { TODO_ZH } from "../console/words_alerts.js";

const second = (t, fields = {}) => ({ t, ms: 1_000, asked: 0, admitted: 0, refused: {}, cached: 0, p50: null, p99: null, backlog: 0, settled: 0, left: {}, ...fields });

test("a second is told once, and fifteen minutes of them are kept", () => {
  const live = new Live();
  const hear = (sample) => live.hear({ event: "sample", data: JSON.stringify(sample) });
  for (let n = 1; n <= 950; n += 1) hear(second(n * 1_000));
  hear(second(950_000));
  hear(second(1_000));
  assert.equal(live.samples.length, 900);
  assert.deepEqual([live.samples[0].t, live.samples.at(-1).t], [51_000, 950_000]);
  live.hear({ event: "state", data: "{\"items\":[]}" });
  assert.deepEqual(live.state, { items: [] });
});

test("the funnel accounts for every claim, layer by layer", () => {
  const samples = [
    second(1, { asked: 100, admitted: 5, cached: 40, refused: { rate_limited: 20, bad_token: 10, sold_out: 50, too_hot: 5, already_bought: 10 } }),
    second(2, { asked: 10, admitted: 1, cached: 9, refused: { sold_out: 9 } }),
  ];
  const { asked, admitted, layers } = funnelOf(samples);
  assert.deepEqual([asked, admitted], [110, 6]);
  assert.deepEqual(layers.map(({ name, came, stopped }) => [name, came, stopped]), [
    ["door", 110, 20], ["token", 90, 10], ["cache", 80, 49], ["lane", 31, 5], ["gate", 26, 20],
  ]);
  assert.equal(layers.at(-1).came - layers.at(-1).stopped, admitted);
  assert.deepEqual(layers.at(-1).codes, { sold_out: 10, already_bought: 10 });
  assert.deepEqual(reasonsOf(samples)[0], ["sold_out", 59]);
});

test("a rate is per second, however long the seconds were", () => {
  const samples = [second(1, { asked: 900 }), second(2, { asked: 10, ms: 500 }), second(3, { asked: 20, ms: 1_500 })];
  assert.equal(rate(samples, (s) => s.asked, 2), 15);
  assert.equal(rate([], (s) => s.asked), 0);
});

test("the sale to look at is the one that is open, else the next", () => {
  const sale = (activity, opens_at, closes_at) => ({ activity, opens_at, closes_at });
  assert.equal(saleToWatch([sale(1, 500, 600), sale(2, 10, 90), sale(3, 200, 300)], 50), 2);
  assert.equal(saleToWatch([sale(1, 500, 600), sale(2, 10, 20), sale(3, 200, 300)], 50), 3);
  assert.equal(saleToWatch([sale(2, 10, 20)], 50), 2);
  assert.equal(saleToWatch([], 50), null);
});

test("a table is read as spreadsheets write it", () => {
  assert.deepEqual(cells("a,\"b, \"\"c\"\"\"\r\n\r\n1,2\n"), [["a", "b, \"c\""], ["1", "2"]]);
  assert.deepEqual(cells("a;b\n1;2,5"), [["a", "b"], ["1", "2,5"]]);
  const { items } = itemsOf("\ufeffname,price,stock,limit,image\nPhone,\"6,999.00\",100,2,https://x.example/p.jpg\n壳,9.9,5,,\n", "CNY");
  assert.deepEqual(items, [
    { currency: "CNY", name: "Phone", price: 699_900, stock: 100, limit_per_user: 2, image_url: "https://x.example/p.jpg" },
    { currency: "CNY", name: "壳", price: 990, stock: 5 },
  ]);
  const mixed = itemsOf("name,price,stock,currency\nTea,980,1,JPY\nOil,1.234,1,KWD\nPen,9.8,1,\n", "USD");
  assert.deepEqual(mixed.items.map(({ price, currency }) => [price, currency]), [[980, "JPY"], [1_234, "KWD"], [980, "USD"]]);
  assert.deepEqual(itemsOf("名称\t价格\t库存\nPhone\t1\t2", "JPY").items, [{ currency: "JPY", name: "Phone", price: 1, stock: 2 }]);
});

test("a table that cannot be meant says where", () => {
  assert.deepEqual(itemsOf("name,price\nx,1", "CNY"), { error: "columns" });
  assert.deepEqual(itemsOf("name,price,stock\nx,1,1\ny,cheap,1", "CNY"), { error: "price", line: 3, column: "price" });
  assert.deepEqual(itemsOf("name,price,stock,currency\nx,1,1,XXQ", "CNY"), { error: "currency", line: 2, column: "XXQ" });
  assert.deepEqual(itemsOf("name,price,stock\n", "CNY"), { error: "empty" });
  assert.deepEqual(itemsOf(`name,price,stock\n${"x,1,1\n".repeat(1_001)}`, "CNY"), { error: "rows" });
});

test("prices have the decimals of their currency and no others", () => {
  assert.deepEqual(["1", "1.5", "1.50", "0.01"].map((text) => minor(text, "CNY")), [100, 150, 150, 1]);
  assert.deepEqual(["1.555", "", "-1", "1.", "x", "9".repeat(13)].map((text) => minor(text, "CNY")), Array(6).fill(null));
  assert.equal(minor("1.5", "JPY"), null);
});

test("what can be sold for is what the server has", () => {
  const source = readFileSync(new URL("../../crates/sale/src/money.rs", import.meta.url), "utf8");
  const list = source.slice(source.indexOf("const ISO_4217"));
  const codes = list.slice(0, list.indexOf("];")).match(/\b[A-Z]{3}\b/g);
  assert.equal(codes.length, 165);
  assert.deepEqual([...CURRENCIES].sort(), codes.sort());
  assert.equal(CURRENCIES[0], "CNY");
});

test("a local time is read as it was written", () => {
  const ms = 1_800_000_005_000;
  assert.equal(fromLocal(toLocal(ms)), ms);
  assert.match(toLocal(ms), /^\d{4}-\d\d-\d\dT\d\d:\d\d:05$/);
});

test("the rehearsal has the shape of the sale", () => {
  assert.equal(command({ buyers: 9, items: 2, stock: 3, within: 5 }), "seckill rehearse --buyers 9 --items 2 --stock 3 --over 5s --html report.html");
  const item = (total) => ({ total });
  assert.deepEqual(shapeOf({ items: [item(5), item(70)] }), { items: 2, stock: 70 });
  assert.deepEqual(shapeOf({ items: Array(30).fill(item(2_000_000)) }), { items: 20, stock: 1_000_000 });
  assert.deepEqual(shapeOf(undefined), { items: 1, stock: 1_000 });
});

test("every alert of the server has a name in both languages, and in Chinese what to do", () => {
  const source = readFileSync(new URL("../../crates/orders/src/alerts/kind.rs", import.meta.url), "utf8");
  const kinds = [...source.matchAll(/^ {4}\w+, "(\w+)", (?:lasts|once),/gm)].map(([, kind]) => kind);
  assert.ok(kinds.length > 15);
  for (const kind of kinds) {
    for (const language of ["en", "zh"]) assert.ok(words[language][`alert_${kind}`], kind);
    assert.ok(TODO_ZH[kind], kind);
  }
  assert.deepEqual(Object.keys(TODO_ZH).sort(), kinds.sort());
});

test("a pause leaves something of the sale", () => {
  const minute = 60_000;
  assert.deepEqual(pausesBefore(16 * minute, 0), [5, 10, 15]);
  assert.deepEqual(pausesBefore(5 * minute, 0), []);
});

test("what the audit says is for people", () => {
  assert.equal(inWords({ by: "link", version: [1, 2], note: null }), "by: link · version: 1 → 2 · note: –");
  assert.doesNotMatch(inWords({ until: 1_800_000_000_000, opens_at: [1_800_000_000_000, 1_800_000_060_000] }), /1800000/);
  assert.equal(inWords(null), "");
});

test("every word that a view asks for is there, and the views of the navigation have names", () => {
  const folder = new URL("../console/", import.meta.url);
  const own = readdirSync(folder).filter((name) => name.endsWith(".js") && !name.startsWith("words"));
  const source = own.map((name) => readFileSync(new URL(name, folder), "utf8")).join("\n");
  for (const [, key] of source.matchAll(/\bt\("([^"]+)"/g)) assert.ok(key in words.en, key);
  for (const [, section] of source.matchAll(/, "([a-z]+)"\],/g)) if (source.includes(`data-section="${section}"`)) assert.ok(`nav_${section}` in words.en, section);
});
