// Receipts, to keep and to show again. A receipt is the buyer's proof of a claim: should every list have lost it,
// whoever shows it is answered.

import { el, setText } from "../element.js";
import { language, say } from "../i18n.js";
import { problemText } from "../problem.js";
import { words } from "./words.js";

/** The receipt of an order, folded away under it. */
export class ReceiptFold {
  #parts;
  #receipt = "";

  constructor(orderNo) {
    const p = {
      title: el("summary"),
      text: el("textarea", { readonly: true, rows: 3, "aria-label": orderNo }),
      copy: el("button", { type: "button", onclick: () => this.#copy() }),
      save: el("a", { class: "button", download: `${orderNo}.receipt.txt` }),
    };
    this.#parts = p;
    this.node = el("details", { class: "receipt" }, p.title, p.text, el("div", { class: "actions" }, p.copy, p.save));
  }

  update(receipt) {
    this.node.hidden = !receipt;
    if (!receipt) return;
    const p = this.#parts;
    setText(p.title, say(words, "receipt"));
    setText(p.save, say(words, "receiptSave"));
    if (this.#receipt === receipt) return;
    this.#receipt = receipt;
    p.text.value = receipt;
    p.save.href = `data:text/plain;charset=utf-8,${encodeURIComponent(receipt)}`;
    setText(p.copy, say(words, "receiptCopy"));
  }

  async #copy() {
    this.#parts.text.select();
    try {
      await navigator.clipboard.writeText(this.#receipt);
      setText(this.#parts.copy, say(words, "receiptCopied"));
    } catch { /* it is selected: the buyer's own keys copy it */ }
  }
}

/** Where a receipt that was kept elsewhere is shown. */
export class ReceiptBox {
  #parts;

  /** `onShow(receipt)` resolves once the order it stands for is known. */
  constructor({ onShow }) {
    const p = {
      title: el("summary"),
      text: el("textarea", { rows: 3, required: true, spellcheck: "false", autocomplete: "off" }),
      show: el("button", { type: "submit" }),
      note: el("p", { class: "note", role: "status" }),
    };
    this.#parts = p;
    const form = el("form", {
      onsubmit: async (event) => {
        event.preventDefault();
        try {
          await onShow(p.text.value.trim());
          p.text.value = "";
          setText(p.note, say(words, "receiptShown"));
        } catch (problem) {
          setText(p.note, problemText(problem, language()));
        }
      },
    }, p.text, el("div", { class: "actions" }, p.show), p.note);
    this.node = el("details", { class: "receipt", "data-receipt-box": true }, p.title, form);
  }

  draw(signedIn) {
    this.node.hidden = !signedIn;
    setText(this.#parts.title, say(words, "receiptHave"));
    setText(this.#parts.show, say(words, "receiptShow"));
    this.#parts.text.setAttribute("aria-label", say(words, "receipt"));
  }
}
