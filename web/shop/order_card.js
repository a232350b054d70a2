// One order: what was won, what it costs, how long it is kept, and what can be done.

import { clockText } from "../countdown.js";
import { el, setAttribute, setChildren, setText } from "../element.js";
import { language, locale, say } from "../i18n.js";
import { formatMoney } from "../money.js";
import { problemText } from "../problem.js";
import { CodePanel } from "./code_panel.js";
import { moneyState } from "./pay_ways.js";
import { ReceiptFold } from "./receipt_box.js";
import { refundText, titleOf } from "./refund_text.js";
import { words } from "./words.js";

export class OrderCard {
  #parts;
  #asking = false;
  #busy = null;
  #problem = null;
  #view = null;
  #choosing = false;
  /** The code that is shown: what the server opened, and at which provider. */
  #code = null;
  #onPay;
  #wayButtons = new Map();

  /**
   * `onPay(way)` and `onCancel()` return promises; while they run the buttons are grey. What `onPay` resolves
   * to is shown if it is a code to scan.
   */
  constructor(orderNo, { onPay, onCancel }) {
    const button = (attributes, press) => el("button", { type: "button", ...attributes, onclick: press });
    const p = {
      name: el("h3"),
      quantity: el("span", { class: "times" }),
      status: el("span", { class: "pill", role: "status" }),
      amount: el("strong"),
      no: el("code", {}, orderNo),
      deadlineLabel: el("span"),
      deadline: el("b", { role: "timer" }),
      reason: el("p", { class: "note" }),
      money: el("p", { class: "note money", role: "status" }),
      refunds: el("ul", { class: "refunds" }),
      pay: button({ class: "pay", "data-pay": orderNo }, () => this.pressPay()),
      scan: button({ class: "quiet", "data-pay-code": orderNo }, () => this.#payBy(this.#view.ways[1])),
      ways: el("ul", { class: "ways" }),
      cancel: button({ class: "quiet", "data-cancel": orderNo }, () => this.#ask(true)),
      sure: el("span", { class: "sure" }),
      yes: button({ class: "danger", "data-cancel-confirm": orderNo }, () => this.#run("cancel", onCancel)),
      keep: button({ class: "quiet" }, () => this.#ask(false)),
    };
    p.due = el("p", { class: "due" }, p.deadlineLabel, " ", p.deadline);
    p.actions = el("div", { class: "actions" });
    this.#onPay = onPay;
    this.#parts = p;
    p.code = new CodePanel({ onClose: () => this.#closeCode() });
    p.receipt = new ReceiptFold(orderNo);
    this.node = el("li", { class: "order", "data-order": orderNo, tabindex: "-1" },
      el("div", { class: "row" }, el("div", {}, p.name, p.quantity), p.status),
      el("div", { class: "row" }, p.no, p.amount),
      p.due, p.money, p.reason, p.refunds, p.code.node, p.actions, p.ways, p.receipt.node);
  }

  update(view) {
    this.#view = view;
    this.#draw();
  }

  #draw() {
    const { order, itemName, now } = this.#view;
    const p = this.#parts;
    setAttribute(this.node, "data-status", order.status);
    setText(p.name, itemName);
    setText(p.quantity, order.quantity > 1 ? say(words, "times", { quantity: order.quantity }) : "");
    setText(p.status, say(words, `status_${order.status}`));
    setText(p.amount, formatMoney(order.amount, order.currency, locale()));
    const unpaid = order.status === "unpaid";
    const left = (order.pay_deadline ?? Infinity) - now;
    // A code has the time beside it.
    p.due.hidden = !unpaid || !Number.isFinite(left) || (this.#code !== null && left > 0);
    setText(p.deadlineLabel, say(words, left > 0 ? "payWithin" : "payTimeOver"));
    setText(p.deadline, left > 0 && Number.isFinite(left) ? clockText(left) : "");
    setText(p.reason, this.#reason(order));
    setAttribute(p.reason, "data-tone", this.#problem ? "bad" : null);
    p.reason.hidden = p.reason.textContent === "";
    this.#drawMoney(order, now);
    this.#drawCode(unpaid && left > 0);
    this.#drawActions(unpaid);
    this.#drawWays(unpaid);
    p.receipt.update(this.#view.receipt);
  }

  #title(provider) {
    return titleOf(this.#view.titles, provider);
  }

  /** Where the money is: on its way to us, here, or on its way back. */
  #drawMoney(order, now) {
    const p = this.#parts;
    const { payment, status } = order;
    const state = status === "unpaid" ? moneyState({ payment, returnedAt: this.#view.returnedAt, now }) : "none";
    setAttribute(this.node, "data-money", state === "none" ? null : state);
    const provider = payment ? this.#title(payment.provider) : say(words, "theProvider");
    const paidWith = status === "paid" && payment?.state === "paid" ? "money_paid" : null;
    const key = { open: "money_open", waiting: "money_waiting", unsure: "money_unsure" }[state] ?? paidWith;
    // A code on the screen says what to do itself.
    setText(p.money, key && !(this.#code && state === "open") ? say(words, key, { provider }) : "");
    p.money.hidden = p.money.textContent === "";
    const lines = (order.refunds ?? []).map((refund) => refundText(refund, this.#view.titles, now));
    while (p.refunds.children.length > lines.length) p.refunds.lastChild.remove();
    lines.forEach((line, n) => {
      if (!p.refunds.children[n]) p.refunds.append(el("li", { class: "note", role: "status" }));
      setText(p.refunds.children[n], line);
    });
    p.refunds.hidden = lines.length === 0;
  }

  #drawCode(payable) {
    // Paid, closed or too late: a code that nobody should scan any more goes away by itself.
    if (!payable && this.#code) {
      const focused = this.#parts.code.node.contains(document.activeElement);
      this.#code = null;
      if (focused) this.node.focus({ preventScroll: true });
    }
    const { node } = this.#parts.code;
    node.hidden = this.#code === null;
    if (this.#code === null) return;
    const { order, now } = this.#view;
    const { opened, provider } = this.#code;
    this.#parts.code.update({ opened, order, title: this.#title(provider), now });
  }

  #closeCode() {
    this.#code = null;
    this.#draw();
    this.#parts.pay.focus();
  }

  /** The button of this order, or another one that stands for it, was pressed. */
  pressPay() {
    if (this.#severalProviders()) {
      this.#choosing = !this.#choosing;
      this.#draw();
      if (this.#choosing) this.#parts.ways.querySelector("button")?.focus();
      return;
    }
    const [way] = this.#view.ways;
    this.#payBy(way);
  }

  #payBy(way) {
    this.#run("pay", async () => {
      this.#choosing = false;
      const opened = await this.#onPay(way);
      this.#code = opened?.qr && way ? { opened, provider: way.provider } : null;
    }).then(() => {
      if (!this.#code) return;
      this.#parts.code.node.scrollIntoView({ block: "nearest" });
      this.#parts.code.node.focus({ preventScroll: true });
    });
  }

  #severalProviders() {
    return new Set(this.#view.ways.map(({ provider }) => provider)).size > 1;
  }

  #drawWays(unpaid) {
    const p = this.#parts;
    const several = this.#severalProviders();
    const shown = unpaid && several && this.#choosing && !this.#asking;
    setAttribute(p.pay, "aria-expanded", several ? String(shown) : null);
    p.ways.hidden = !shown;
    setAttribute(p.ways, "aria-label", say(words, "payWith"));
    setChildren(p.ways, shown ? this.#view.ways.map((way) => this.#wayButton(way)) : []);
  }

  #wayButton(way) {
    const key = `${way.provider} ${way.method}`;
    if (!this.#wayButtons.has(key)) {
      const parts = { name: el("b"), how: el("span") };
      const button = el("button", { type: "button", class: "way", "data-way": key, onclick: () => this.#payBy(way) },
        parts.name, parts.how);
      this.#wayButtons.set(key, { ...parts, button, node: el("li", {}, button) });
    }
    const known = this.#wayButtons.get(key);
    setText(known.name, this.#title(way.provider));
    setText(known.how, say(words, `way_${way.method}`));
    setAttribute(known.button, "aria-disabled", this.#busy ? "true" : null);
    return known.node;
  }

  #drawActions(unpaid) {
    const p = this.#parts;
    const { ways } = this.#view;
    const codeToo = ways.length > 1 && !this.#severalProviders() && !this.#code;
    const payable = ways.length > 0 ? [p.pay, ...(codeToo ? [p.scan] : [])] : [];
    // Giving back what a thousand others wanted should take more than one slip of the thumb.
    const buttons = this.#asking ? [p.sure, p.keep, p.yes] : [...payable, p.cancel];
    setChildren(p.actions, unpaid ? buttons : []);
    p.actions.hidden = !unpaid;
    const money = this.node.getAttribute("data-money");
    const again = money === "waiting" || money === "unsure";
    setAttribute(p.pay, "class", money === "waiting" ? "quiet" : "pay");
    setText(p.pay, say(words, this.#busy === "pay" ? "paying" : again ? "payAgain" : "pay"));
    setText(p.scan, say(words, "payByCode"));
    setText(p.cancel, say(words, "cancel"));
    setText(p.sure, say(words, "cancelSure"));
    setText(p.yes, say(words, "cancelYes"));
    setText(p.keep, say(words, "cancelNo"));
    for (const button of [p.pay, p.scan, p.cancel, p.yes, p.keep]) {
      setAttribute(button, "aria-disabled", this.#busy ? "true" : null);
    }
  }

  #reason({ reason, status, position }) {
    if (this.#problem) return problemText(this.#problem, language());
    if (status === "unpaid" && this.#view.ways.length === 0) return say(words, "noProvider");
    if (status === "queued" && position > 1) return say(words, "place", { ahead: position - 1 });
    if (!reason) return "";
    const key = `reason_${reason}`;
    return key in words.en ? say(words, key) : reason;
  }

  #ask(asking) {
    if (this.#busy) return;
    this.#asking = asking;
    this.#draw();
    (asking ? this.#parts.keep : this.#parts.cancel).focus();
  }

  async #run(what, act) {
    if (this.#busy) return;
    this.#busy = what;
    this.#problem = null;
    this.#draw();
    try {
      await act();
    } catch (problem) {
      this.#problem = problem;
    }
    this.#busy = null;
    this.#asking = false;
    this.#draw();
  }
}
