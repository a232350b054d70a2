// Where and how an order is paid, without a browser.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  CONFIRMED_WITHIN_MS, deviceOf, moneyState, payInsideApp, returnedOrder, waysToPay, webAddress,
} from "../shop/pay_ways.js";
import { refundText, titleOf } from "../shop/refund_text.js";
import { OrderBook } from "../shop/order_book.js";

const WECHAT = { provider: "wechat", methods: ["qr", "phone", "app"] };
const ALIPAY = { provider: "alipay", methods: ["page", "phone", "qr"] };
const DESK = { kind: "desk", app: null };
const PHONE = { kind: "phone", app: null };
const ways = (...asked) => waysToPay(...asked).map(({ provider, method }) => `${provider} ${method}`);

test("a desk is shown a page or a code, a phone its own way, and nobody what they cannot use", () => {
  assert.deepEqual(ways([ALIPAY, WECHAT], DESK), ["alipay page", "alipay qr", "wechat qr"]);
  assert.deepEqual(ways([ALIPAY, WECHAT], PHONE), ["alipay phone", "wechat phone"]);
  assert.deepEqual(ways([{ provider: "wechat", methods: ["qr"] }], PHONE), ["wechat qr"], "better than nothing");
  assert.deepEqual(ways([{ provider: "wechat", methods: ["app"] }], DESK), []);
  assert.deepEqual(ways([], DESK), []);
});

test("inside WeChat its script is used, if it is known who pays", () => {
  const inside = { kind: "phone", app: "wechat" };
  assert.deepEqual(ways([WECHAT], inside, "o-1"), ["wechat app"]);
  assert.deepEqual(ways([WECHAT], inside, null), ["wechat phone"]);
  assert.deepEqual(ways([ALIPAY], inside, "o-1"), ["alipay phone"]);
});

test("what a browser says of itself", () => {
  const iphone = "Mozilla/5.0 (iPhone; CPU iPhone OS 17_0 like Mac OS X) Mobile/15E148";
  assert.deepEqual(deviceOf({ userAgent: iphone }), { kind: "phone", app: null });
  assert.deepEqual(deviceOf({ userAgent: `${iphone} MicroMessenger/8.0` }), { kind: "phone", app: "wechat" });
  assert.deepEqual(deviceOf({ userAgent: "Mozilla/5.0 (X11; Linux x86_64) Chrome/140" }), DESK);
  assert.deepEqual(deviceOf({ userAgent: "Chrome", userAgentData: { mobile: true } }), PHONE);
  assert.deepEqual(deviceOf(), DESK);
});

test("WeChat's script says how it ended; without it nothing was paid", async () => {
  const bridge = (told) => ({ invoke: (name, given, then) => then({ err_msg: `get_brand_wcpay_request:${told}` }) });
  assert.equal(await payInsideApp({}, bridge("ok")), "ok");
  assert.equal(await payInsideApp({}, bridge("cancel")), "cancel");
  assert.equal(await payInsideApp({}, bridge("fail")), "fail");
  assert.equal(await payInsideApp({}, null), "fail");
});

test("who comes back is waited with, and then told what may be the matter", () => {
  const open = { provider: "wechat", state: "open" };
  assert.equal(moneyState({ payment: undefined, returnedAt: null, now: 9 }), "none");
  assert.equal(moneyState({ payment: open, returnedAt: null, now: 9 }), "open");
  assert.equal(moneyState({ payment: open, returnedAt: 5, now: 9 }), "waiting");
  assert.equal(moneyState({ payment: undefined, returnedAt: 5, now: 5 + CONFIRMED_WITHIN_MS }), "unsure");
});

test("the order is read from the address that a provider sends back to, whatever it adds", () => {
  const alipay = "https://sale.example/?order=SK0381966054408192001&charset=utf-8&out_trade_no=x&sign=a%2Bb";
  assert.deepEqual(returnedOrder(alipay), { order: "SK0381966054408192001", clean: "/#orders" });
  assert.equal(returnedOrder("https://sale.example/"), null);
  assert.equal(returnedOrder("https://sale.example/?order=%3Cscript%3E"), null);
});

test("a payment address is a web page", () => {
  assert.equal(webAddress("/cashier/1?token=x", "https://sale.example/"), "https://sale.example/cashier/1?token=x");
  assert.equal(webAddress("https://wx.tenpay.com/h5", "https://sale.example/"), "https://wx.tenpay.com/h5");
  for (const bad of ["javascript:alert(1)", "data:text/html,x", "weixin://wap/pay", "http://["]) {
    assert.equal(webAddress(bad, "https://sale.example/"), null, bad);
  }
});

test("what goes back says why, how much and where to", () => {
  const titles = { wechat: { en: "WeChat Pay", zh: "微信支付" } };
  const refund = { provider: "wechat", amount: 699900, currency: "CNY", reason: "late", note: null, state: "pending" };
  const pending = refundText(refund, titles, 0);
  assert.match(pending, /after the order was closed/);
  assert.match(pending, /6,999\.00 is on its way back to WeChat Pay\.$/);
  const done = refundText({ ...refund, reason: "operator", note: "It broke.", state: "done", done_at: 0 }, titles, 0);
  assert.match(done, /The shop gives your money back\. It broke\. .*6,999\.00 went back to WeChat Pay/);
  assert.match(refundText({ ...refund, reason: null }, {}, 0), /^CN¥6,999\.00 is on its way back to wechat\.$/);
  assert.equal(titleOf(titles, "wechat"), "WeChat Pay");
});

test("lists in an order that say the same are no news", () => {
  const book = new OrderBook();
  const order = () => ({ order_no: "SK1", status: "unpaid", pay_with: [{ provider: "wechat", methods: ["qr"] }] });
  assert.equal(book.hear(order()), true);
  assert.equal(book.hear(order()), false);
  assert.equal(book.hear({ ...order(), payment: { provider: "wechat", state: "open" } }), true);
});
