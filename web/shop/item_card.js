// One item: what it is, how much is gone, and the button. Everything that may be said has its room beforehand, so
// that nothing moves when it is.

import { clockText } from "../countdown.js";
import { el, setAttribute, setText } from "../element.js";
import { dateTime, language, locale, say } from "../i18n.js";
import { formatMoney, percentOff } from "../money.js";
import { problemText } from "../problem.js";
import { resumesAt } from "./activity_section.js";
import { buyState, waitReason } from "./buy_state.js";
import { FINAL_MS } from "./phase.js";
import { words } from "./words.js";

const PLACEHOLDER = "/assets/placeholder.svg";
/** For so long an item that came back is marked. */
const BACK_MS = 30_000;
/** @type {Intl.DateTimeFormatOptions} */
const TO_THE_SECOND = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };

export class ItemCard {
  #quantity = 1;
  #limit = 1;
  #state = "waiting";
  #soldOut = false;
  #backUntil = 0;
  #parts;

  /** `onBuy(quantity)` when the lit button is pressed, `onOrder()` when the buyer wants their order. */
  constructor(id, { onBuy, onOrder }) {
    const photo = el("img", {
      alt: "", decoding: "async", width: 400, height: 300, src: PLACEHOLDER, class: "placeholder",
    });
    photo.addEventListener("error", () => this.show(""));
    const p = {
      photo,
      stamp: el("b"),
      link: el("a", { href: `/items/${id}` }),
      price: el("strong"),
      origin: el("s"),
      originLabel: el("span", { class: "unseen" }),
      off: el("span", { class: "off" }),
      bar: el("progress", { max: 1, value: 0 }),
      left: el("span"),
      limit: el("span", { class: "limit" }),
      less: el("button", { type: "button", onclick: () => this.#step(-1) }, "−"),
      count: el("output"),
      more: el("button", { type: "button", onclick: () => this.#step(1) }, "+"),
      // `aria-disabled` instead of `disabled`: a keyboard user may wait on the grey button and press
      // it at the opening, while a disabled one cannot hold the focus.
      buy: el("button", {
        type: "button", class: "buy", "data-buy": id, "data-state": "waiting",
        "aria-disabled": "true", "aria-describedby": `item-${id}`,
        onclick: () => this.#press(onBuy, onOrder),
      }),
      note: el("p", { class: "note", role: "status" }),
    };
    p.quantity = el("div", { class: "quantity", role: "group" }, p.less, p.count, p.more);
    this.#parts = p;
    this.node = el("article", { class: "card", "data-item": id, "aria-labelledby": `item-${id}` },
      el("a", { class: "photo", href: `/items/${id}`, tabindex: "-1", "aria-hidden": "true" },
        p.photo, p.off, el("span", { class: "stamp" }, p.stamp)),
      el("div", { class: "about" },
        el("h3", { id: `item-${id}` }, p.link),
        el("p", { class: "price" }, p.price, p.originLabel, p.origin),
        el("div", { class: "left" }, p.bar, el("p", {}, p.left, p.limit)),
        el("div", { class: "act" }, p.quantity, p.buy),
        p.note));
  }

  get state() {
    return this.#state;
  }

  /**
   * `opensAt` is from when this buyer may buy. `attempt` is what this page did: {sending, position, coolUntil,
   * problem, solving}. `order` is the buyer's live order of this item, or null.
   */
  update(view) {
    const { item, activity, opensAt, now, synced, attempt, order } = view;
    this.#describe(item);
    this.#state = buyState({
      now, synced, opensAt, closesAt: activity.closes_at, activityState: activity.state, itemState: item.state,
      left: item.left, sending: attempt.sending, coolUntil: attempt.barred ? Infinity : attempt.coolUntil,
      orderStatus: order?.status,
    });
    this.#noticeReturn(now);
    const { buy, note, quantity, stamp } = this.#parts;
    setAttribute(this.node, "data-state", this.#state);
    setAttribute(this.node, "data-back", now < this.#backUntil);
    setAttribute(buy, "data-state", this.#state);
    setAttribute(buy, "aria-disabled", this.#state === "ready" || this.#state === "bought" ? null : "true");
    const countedDown = this.#state === "waiting" && synced && opensAt > now && opensAt - now <= FINAL_MS;
    setAttribute(buy, "data-moment", countedDown);
    setText(buy, this.#label(view));
    buy.style.setProperty("--solved", attempt.solving < 1 ? String(attempt.solving) : "0");
    const [text, tone] = this.#note(view);
    setText(note, text);
    setAttribute(note, "data-tone", tone);
    const stamped = { sold_out: "stampSoldOut", ended: "stampEnded", bought: "stampYours" }[this.#state];
    setText(stamp, stamped ? say(words, stamped) : "");
    quantity.hidden = this.#limit <= 1;
    setAttribute(quantity, "data-off", !["ready", "waiting", "queueing"].includes(this.#state));
  }

  /** Units came back while somebody looked: worth a word, and a frame that catches the eye. */
  #noticeReturn(now) {
    if (this.#soldOut && this.#state === "ready") this.#backUntil = now + BACK_MS;
    if (["sold_out", "ready"].includes(this.#state)) this.#soldOut = this.#state === "sold_out";
  }

  #describe(item) {
    const p = this.#parts;
    setText(p.link, item.name);
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
    this.#showFirst(item.image_url ?? "");
  }

  /** The bar fills as units are sold. */
  #describeStock({ left, stock }) {
    const { bar, left: text } = this.#parts;
    const known = Number.isFinite(left) && Number.isFinite(stock) && stock > 0;
    if (!known) return setText(text, Number.isFinite(stock) ? say(words, "stockOf", { stock }) : "");
    // Returned units can for a moment be seen before the stock they belong to.
    const shown = Math.min(Math.max(left, 0), stock);
    const sold = stock - shown;
    if (bar.max !== stock) bar.max = stock;
    if (bar.value !== sold) bar.value = sold;
    const numbers = { left: shown.toLocaleString(locale()), stock: stock.toLocaleString(locale()) };
    // Never a hundred while one is left, and never nothing once one is gone.
    const percent = Math.floor((sold / stock) * 100) || (sold > 0 ? "<1" : 0);
    const sentence = say(words, shown === 0 ? "noneLeft" : sold === 0 ? "stockOf" : "left", { ...numbers, percent });
    setAttribute(bar, "aria-label", sentence);
    setText(text, sentence);
  }

  #showFirst(url) {
    if (this.#parts.photo.dataset.first === url) return;
    this.#parts.photo.dataset.first = url;
    this.show(url);
  }

  /** This picture, or the placeholder if there is none. */
  show(url) {
    const { photo } = this.#parts;
    const src = url || PLACEHOLDER;
    // The placeholder itself may be missing; asking for it for ever would not bring it back.
    if (photo.getAttribute("src") === src) return;
    photo.classList.toggle("placeholder", !url);
    photo.src = src;
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

  #label({ activity, opensAt, now, synced, attempt, order }) {
    switch (this.#state) {
      case "ready": return say(words, "buy");
      case "bought": return this.#owned(order, now);
      case "sold_out": return say(words, "buySoldOut");
      case "ended": return say(words, "buyEnded");
      case "queueing": {
        if (attempt.sending) return say(words, "buySending");
        const position = attempt.position ?? order?.position;
        return Number.isFinite(position) ? say(words, "buyQueueingAt", { position }) : say(words, "buyQueueing");
      }
      default: break;
    }
    switch (waitReason({ now, synced, opensAt, activityState: activity.state })) {
      case "clock": return say(words, "buyClock");
      case "opening": return opensAt - now <= FINAL_MS
        ? say(words, "buyOpensIn", { time: clockText(opensAt - now) })
        : say(words, "buyOpens", { time: dateTime(opensAt, now) });
      case "paused": {
        const at = resumesAt(activity, now);
        return at === null ? say(words, "buyPaused") : say(words, "buyPausedUntil", { time: dateTime(at, now) });
      }
      default: return attempt.barred ? say(words, "buyBarred")
        : say(words, "buyCooling", { seconds: Math.ceil((attempt.coolUntil - now) / 1_000) });
    }
  }

  #owned(order, now) {
    const left = (order.pay_deadline ?? 0) - now;
    return order.status === "unpaid" && left > 0
      ? say(words, "buyPay", { time: clockText(left) }) : say(words, "buyBought");
  }

  /** What is said under the button, and in which tone. */
  #note({ item, activity, opensAt, now, synced, attempt, order, signedIn }) {
    if (order?.status === "queued") {
      const waits = Math.ceil(((attempt.expectedAt ?? 0) - now) / 1_000);
      return [waits > 1 ? say(words, "noteQueuedFor", { seconds: waits }) : say(words, "noteQueued"), "good"];
    }
    if (order?.status === "paid") return [say(words, "notePaid"), "good"];
    if (order?.status === "unpaid") return [say(words, "noteUnpaid"), "good"];
    // In tens: a status line that changes with every try would be read aloud with every try.
    if (attempt.solving < 1) {
      return [say(words, "noteSolving", { percent: Math.floor(attempt.solving * 10) * 10 }), null];
    }
    const drawEnds = item.draw?.ends_at ?? 0;
    if (attempt.sending) return [say(words, now < drawEnds ? "noteInDraw" : "noteSending"), null];
    if (attempt.problem) {
      const { code } = attempt.problem;
      if (code === "sign_in") return [say(words, "signInFirst"), "bad"];
      if (code === "not_eligible") {
        const reason = attempt.problem.body?.reason === "members_only" ? "notMember" : "notAllowed";
        return [say(words, reason), null];
      }
      return [problemText(attempt.problem, language()), "bad"];
    }
    if (this.#state === "ready" && now < drawEnds) {
      return [say(words, "noteDraw", { time: new Intl.DateTimeFormat(locale(), TO_THE_SECOND).format(drawEnds) }), null];
    }
    if (now < this.#backUntil) return [say(words, "noteBack"), "back"];
    if (this.#state === "sold_out") return [say(words, "noteSoldOut"), null];
    if (activity.state === "paused" && now >= opensAt && this.#state === "waiting") return [pausedNote(activity, now), null];
    return membersNote({ activity, opensAt, now, synced, signedIn, state: this.#state });
  }
}

function pausedNote(activity, now) {
  const at = resumesAt(activity, now);
  return at === null ? say(words, "notePaused") : say(words, "notePausedUntil", { time: dateTime(at, now) });
}

/** What members and others are told while only members may buy. */
function membersNote({ activity, opensAt, now, synced, signedIn, state }) {
  const { members_from: from, opens_at: everybody } = activity;
  if (!synced || !Number.isFinite(from) || now < from || now >= everybody) return ["", null];
  if (state === "ready") return [say(words, "memberNow"), "good"];
  if (!signedIn) return [say(words, "memberSignIn"), null];
  return [say(words, "memberOthers", { time: dateTime(opensAt, now) }), null];
}
