// One order: what was won, what it costs, how long it is kept, and what can be done.

import { clockText } from "../countdown.js";
import { el, setAttribute, setChildren, setText } from "../element.js";
import { language, locale, say } from "../i18n.js";
import { formatMoney } from "../money.js";
import { problemText } from "../problem.js";
import { words } from "./words.js";

export class OrderCard {
  #parts;
  #asking = false;
  #busy = null;
  #problem = null;
  #view = null;

  /** `onPay` and `onCancel` return promises; while they run the buttons are grey. */
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
      pay: button({ class: "pay", "data-pay": orderNo }, () => this.#run("pay", onPay)),
      cancel: button({ class: "quiet", "data-cancel": orderNo }, () => this.#ask(true)),
      sure: el("span", { class: "sure" }),
      yes: button({ class: "danger", "data-cancel-confirm": orderNo }, () => this.#run("cancel", onCancel)),
      keep: button({ class: "quiet" }, () => this.#ask(false)),
    };
    p.due = el("p", { class: "due" }, p.deadlineLabel, " ", p.deadline);
    p.actions = el("div", { class: "actions" });
    this.#parts = p;
    this.node = el("li", { class: "order", "data-order": orderNo, tabindex: "-1" },
      el("div", { class: "row" }, el("div", {}, p.name, p.quantity), p.status),
      el("div", { class: "row" }, p.no, p.amount),
      p.due, p.reason, p.actions);
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
    p.due.hidden = !unpaid || !Number.isFinite(left);
    setText(p.deadlineLabel, say(words, left > 0 ? "payWithin" : "payTimeOver"));
    setText(p.deadline, left > 0 && Number.isFinite(left) ? clockText(left) : "");
    setText(p.reason, this.#reason(order));
    setAttribute(p.reason, "data-tone", this.#problem ? "bad" : null);
    p.reason.hidden = p.reason.textContent === "";
    this.#drawActions(unpaid);
  }

  #drawActions(unpaid) {
    const p = this.#parts;
    // Giving back what a thousand others wanted should take more than one slip of the thumb.
    const buttons = this.#asking ? [p.sure, p.keep, p.yes] : [p.pay, p.cancel];
    setChildren(p.actions, unpaid ? buttons : []);
    p.actions.hidden = !unpaid;
    setText(p.pay, say(words, this.#busy === "pay" ? "paying" : "pay"));
    setText(p.cancel, say(words, "cancel"));
    setText(p.sure, say(words, "cancelSure"));
    setText(p.yes, say(words, "cancelYes"));
    setText(p.keep, say(words, "cancelNo"));
    for (const button of [p.pay, p.cancel, p.yes, p.keep]) {
      setAttribute(button, "aria-disabled", this.#busy ? "true" : null);
    }
  }

  #reason({ reason, status, position }) {
    if (this.#problem) return problemText(this.#problem, language());
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
