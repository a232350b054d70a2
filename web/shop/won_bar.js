// What the buyer has won, over everything: until it is paid, nothing else on the page matters as much.

import { clockText } from "../countdown.js";
import { byId, el, setAttribute, setText } from "../element.js";
import { locale, say } from "../i18n.js";
import { formatMoney } from "../money.js";
import { words } from "./words.js";

/** The order that is told about: to be paid before all, and the nearest deadline first; else one on its way. */
export function loudest(orders) {
  const unpaid = orders.filter(({ status }) => status === "unpaid");
  unpaid.sort((a, b) => (a.pay_deadline ?? Infinity) - (b.pay_deadline ?? Infinity));
  return unpaid[0] ?? orders.find(({ status }) => status === "queued") ?? null;
}

export class WonBar {
  #order = null;
  #parts;
  #node = byId("won");

  /** `onPay(orderNo)` when the buyer presses the one button that counts. */
  constructor({ onPay }) {
    const p = {
      // Read aloud once: the time beside it changes every second.
      loud: el("p", { class: "loud" }),
      which: el("p", { class: "which" }),
      pay: el("button", { type: "button", class: "pay", "data-won": true, onclick: () => onPay(this.#order.order_no) }),
    };
    this.#parts = p;
    this.#node.append(el("div", {}, p.loud, p.which), p.pay);
  }

  update({ orders, nameOf, expectedAt, now }) {
    const order = loudest(orders);
    this.#order = order;
    this.#node.hidden = order === null;
    if (order === null) return null;
    const p = this.#parts;
    const queued = order.status === "queued";
    setAttribute(this.#node, "data-kind", order.status);
    setAttribute(this.#node, "aria-label", say(words, queued ? "wonQueued" : "won"));
    p.pay.hidden = queued;
    setText(p.pay, say(words, "wonPay"));
    const left = (order.pay_deadline ?? Infinity) - now;
    const time = Number.isFinite(left) ? clockText(Math.max(0, left)) : "";
    setText(p.loud, queued ? say(words, "wonQueued") : time ? say(words, "wonWithin", { time }) : say(words, "won"));
    setText(p.which, queued ? place(order, expectedAt, now)
      : [nameOf(order), formatMoney(order.amount, order.currency, locale())].filter(Boolean).join(" · "));
    return queued || !time ? null : say(words, "titleWon", { time });
  }
}

function place({ position }, expectedAt, now) {
  const seconds = Math.max(1, Math.ceil(((expectedAt ?? 0) - now) / 1_000));
  return Number.isFinite(position) ? say(words, "wonPlace", { position, seconds }) : say(words, "wonSoon", { seconds });
}
