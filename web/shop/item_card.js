// One item: what it is, how much is left, and the button.

import { el, setAttribute, setText } from "../element.js";
import { clockText } from "../countdown.js";
import { dateTime, language, locale, say } from "../i18n.js";
import { formatMoney, percentOff } from "../money.js";
import { problemText } from "../problem.js";
import { buyState, waitReason } from "./buy_state.js";
import { words } from "./words.js";

const PLACEHOLDER = "/assets/placeholder.svg";

export class ItemCard {
  #id;
  #quantity = 1;
  #limit = 1;
  #state = "waiting";
  #parts;

  /** `onBuy(quantity)` when the lit button is pressed, `onOrder()` when the buyer wants their order. */
  constructor(id, { onBuy, onOrder }) {
    this.#id = id;
    const part = (tag, attributes, ...children) => el(tag, attributes, ...children);
    const photo = part("img", { alt: "", loading: "lazy", decoding: "async", width: 400, height: 300, src: PLACEHOLDER, class: "placeholder" });
    photo.addEventListener("error", () => this.#showPlaceholder());
    const p = {
      photo,
      name: part("h3", { id: `item-${id}` }),
      price: part("strong"),
      origin: part("s"),
      originLabel: part("span", { class: "unseen" }),
      off: part("span", { class: "off" }),
      bar: part("progress", { max: 1, value: 1 }),
      left: part("span"),
      limit: part("span", { class: "limit" }),
      less: part("button", { type: "button", onclick: () => this.#step(-1) }, "−"),
      count: part("output"),
      more: part("button", { type: "button", onclick: () => this.#step(1) }, "+"),
      // `aria-disabled` instead of `disabled`: a keyboard user may wait on the grey button and press
      // it at the opening, while a disabled one cannot hold the focus.
      buy: part("button", {
        type: "button", class: "buy", "data-buy": id, "data-state": "waiting",
        "aria-disabled": "true", "aria-describedby": `item-${id}`,
        onclick: () => this.#press(onBuy, onOrder),
      }),
      note: part("p", { class: "note", role: "status" }),
    };
    p.quantity = part("div", { class: "quantity", role: "group" }, p.less, p.count, p.more);
    this.#parts = p;
    this.node = el("article", { class: "card", "data-item": id, "aria-labelledby": `item-${id}` },
      el("div", { class: "photo" }, p.photo, p.off),
      el("div", { class: "about" },
        p.name,
        el("p", { class: "price" }, p.price, " ", p.originLabel, p.origin),
        el("div", { class: "left" }, p.bar, el("p", {}, p.left, p.limit)),
        el("div", { class: "act" }, p.quantity, p.buy),
        p.note));
  }

  get quantity() {
    return this.#quantity;
  }

  /**
   * `attempt` is what this page did: {sending, position, coolUntil, problem}. `order` is the buyer's
   * live order of this item, or null.
   */
  update({ item, activity, now, synced, attempt, order }) {
    this.#describe(item);
    this.#state = buyState(this.#facts({ item, activity, now, synced, attempt, order }));
    const { buy, note, quantity } = this.#parts;
    setAttribute(buy, "data-state", this.#state);
    setAttribute(buy, "aria-disabled", this.#state === "ready" || this.#state === "bought" ? null : "true");
    setText(buy, this.#label({ item, activity, now, synced, attempt, order }));
    setText(note, this.#note({ now, attempt, order }));
    setAttribute(note, "data-tone", attempt.problem && !order ? "bad" : order ? "good" : null);
    quantity.hidden = this.#limit <= 1 || (this.#state !== "ready" && this.#state !== "waiting");
  }

  #facts({ item, activity, now, synced, attempt, order }) {
    return {
      now, synced, opensAt: activity.opens_at, closesAt: activity.closes_at,
      activityState: activity.state, itemState: item.state, left: item.left,
      sending: attempt.sending, coolUntil: attempt.coolUntil, orderStatus: order?.status,
    };
  }

  #describe(item) {
    const p = this.#parts;
    setText(p.name, item.name);
    setText(p.price, formatMoney(item.price, item.currency, locale(), { short: true }));
    const percent = percentOff(item.price, item.origin_price);
    const cheaper = item.origin_price > item.price;
    setText(p.origin, cheaper ? formatMoney(item.origin_price, item.currency, locale(), { short: true }) : "");
    setText(p.originLabel, cheaper ? `${say(words, "wasPrice")} ` : "");
    setText(p.off, percent > 0 ? say(words, "off", { percent }) : "");
    this.#describeStock(item);
    this.#limit = Math.max(1, item.limit_per_user ?? 1);
    setText(p.limit, this.#limit > 1 ? say(words, "limit", { limit: this.#limit }) : "");
    this.#step(0);
    setAttribute(p.quantity, "aria-label", say(words, "quantity"));
    setAttribute(p.less, "aria-label", say(words, "less"));
    setAttribute(p.more, "aria-label", say(words, "more"));
    this.#showPhoto(item.image_url);
  }

  #describeStock({ left, stock }) {
    const { bar, left: text } = this.#parts;
    const known = Number.isFinite(left) && Number.isFinite(stock) && stock > 0;
    bar.hidden = !known;
    if (!known) return setText(text, Number.isFinite(stock) ? say(words, "stockOf", { stock }) : "");
    // Returned units can for a moment be seen before the stock they belong to.
    const shown = Math.min(Math.max(left, 0), stock);
    if (bar.max !== stock) bar.max = stock;
    if (bar.value !== shown) bar.value = shown;
    const sentence = say(words, "left", { left: shown.toLocaleString(locale()), stock: stock.toLocaleString(locale()) });
    setAttribute(bar, "aria-label", sentence);
    setAttribute(bar, "data-low", shown * 5 <= stock);
    setText(text, shown === 0 ? say(words, "noneLeft") : sentence);
  }

  #showPhoto(url) {
    const { photo } = this.#parts;
    if (photo.dataset.url === (url ?? "")) return;
    photo.dataset.url = url ?? "";
    photo.classList.toggle("placeholder", !url);
    photo.src = url || PLACEHOLDER;
  }

  #showPlaceholder() {
    const { photo } = this.#parts;
    // The placeholder itself may be missing; asking for it for ever would not bring it back.
    if (photo.getAttribute("src") === PLACEHOLDER) return;
    photo.classList.add("placeholder");
    photo.src = PLACEHOLDER;
  }

  #step(by) {
    const { count, less, more } = this.#parts;
    this.#quantity = Math.min(Math.max(1, this.#quantity + by), this.#limit);
    setText(count, String(this.#quantity));
    setAttribute(less, "aria-disabled", this.#quantity <= 1 ? "true" : null);
    setAttribute(more, "aria-disabled", this.#quantity >= this.#limit ? "true" : null);
  }

  #press(onBuy, onOrder) {
    if (this.#state === "bought") return onOrder();
    if (this.#state !== "ready") return;
    // Grey at once, before any redraw: the second tap of a double tap must find it so.
    this.#state = "queueing";
    this.#parts.buy.dataset.state = "queueing";
    onBuy(this.#quantity);
  }

  #label({ activity, now, synced, attempt, order }) {
    switch (this.#state) {
      case "ready": return say(words, "buy");
      case "bought": return say(words, "buyBought");
      case "sold_out": return say(words, "buySoldOut");
      case "ended": return say(words, "buyEnded");
      case "queueing": {
        const position = attempt.position ?? order?.position;
        return Number.isFinite(position) ? say(words, "buyQueueingAt", { position }) : say(words, "buyQueueing");
      }
      default: break;
    }
    switch (waitReason({ now, synced, opensAt: activity.opens_at, activityState: activity.state })) {
      case "clock": return say(words, "buyClock");
      case "opening": return say(words, "buyOpens", { time: dateTime(activity.opens_at, now) });
      case "paused": return say(words, "buyPaused");
      default: return say(words, "buyCooling", { seconds: Math.ceil((attempt.coolUntil - now) / 1_000) });
    }
  }

  #note({ now, attempt, order }) {
    if (order?.status === "queued") return say(words, "noteQueued");
    if (order?.status === "paid") return say(words, "notePaid");
    if (order?.status === "unpaid") {
      // Whole minutes: a status line that changes every second would be read aloud every second.
      const left = order.pay_deadline ? Math.ceil(Math.max(0, order.pay_deadline - now) / 60_000) * 60_000 : null;
      return left === null ? "" : say(words, "noteUnpaid", { time: clockText(left) });
    }
    // In tens: a status line that changes with every try would be read aloud with every try.
    if (attempt.solving < 1) return say(words, "noteSolving", { percent: Math.floor(attempt.solving * 10) * 10 });
    if (attempt.sending || !attempt.problem) return "";
    return attempt.problem.code === "sign_in" ? say(words, "signInFirst") : problemText(attempt.problem, language());
  }
}
