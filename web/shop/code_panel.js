// A code to scan: what it costs, how long it is good for, and what to do with it.

import { clockText } from "../countdown.js";
import { el, setAttribute, setText } from "../element.js";
import { locale, say } from "../i18n.js";
import { formatMoney } from "../money.js";
import { words } from "./words.js";

export class CodePanel {
  #parts;

  constructor({ onClose }) {
    const p = {
      title: el("p", { class: "code-title" }),
      image: el("img", { width: 220, height: 220 }),
      amount: el("strong", { class: "code-amount" }),
      due: el("p", { class: "due" }),
      deadline: el("b", { role: "timer" }),
      label: el("span"),
      hint: el("p", { class: "note", role: "status" }),
      close: el("button", { type: "button", class: "quiet", "data-close-code": true, onclick: onClose }),
    };
    p.due.append(p.label, " ", p.deadline);
    this.#parts = p;
    this.node = el("div", { class: "code", role: "group", tabindex: "-1" },
      p.title, el("div", { class: "code-image" }, p.image), p.amount, p.due, p.hint, p.close);
    this.node.addEventListener("keydown", (event) => { if (event.key === "Escape") onClose(); });
  }

  update({ opened, order, title, now }) {
    const p = this.#parts;
    // An address in an image, never markup in the page.
    setAttribute(p.image, "src", `data:image/svg+xml,${encodeURIComponent(opened.qr.svg)}`);
    setAttribute(p.image, "alt", say(words, "codeAlt", { provider: title }));
    setAttribute(this.node, "aria-label", say(words, "codeTitle", { provider: title }));
    setText(p.title, say(words, "codeTitle", { provider: title }));
    setText(p.amount, formatMoney(order.amount, order.currency, locale()));
    const left = (opened.expires_at ?? order.pay_deadline ?? Infinity) - now;
    p.due.hidden = !Number.isFinite(left);
    setText(p.label, say(words, left > 0 ? "payWithin" : "codeOver"));
    setText(p.deadline, left > 0 && Number.isFinite(left) ? clockText(left) : "");
    setAttribute(this.node, "data-over", !(left > 0));
    setText(p.hint, say(words, left > 0 ? "codeHint" : "payTimeOver"));
    setText(p.close, say(words, "codeClose"));
  }
}
