// <seckill-button item="42">: a buy button for any page. It counts down by the server's clock, fetches its
// sale token before the opening, claims once, follows the order, and tells the page by DOM events. The page
// says who buys: `button.token = jwt`, or a function that gives it. Never an attribute, which anybody
// reads. Nothing here is inline, so that it works under a strict policy of the page it stands on.
//
// Who waits for something that will be told, an order that moves or units that come back, listens to the
// buyer's events and asks seldom; who is not heard (too many listen, a proxy that holds events back) asks as
// often as ever. Nobody else listens: at the opening a stream for each who looks would be a second crowd.
//
// Events (they bubble): seckill-ready, seckill-claimed {order_no, receipt, …}, seckill-order (the order),
// seckill-pay (pressed with an order to be paid), seckill-sign-in, seckill-error {code, status, detail, …}.

import { ask } from "../answer.js";
import { backoffMs, between } from "../backoff.js";
import { ServerClock } from "../clock.js";
import { clockText, nextTick } from "../countdown.js";
import { buyState, coolDownMs, waitReason } from "../shop/buy_state.js";
import { claim, newKey } from "../shop/claim.js";
import { SaleTokens } from "../shop/sale_token.js";
import { inWords } from "./words.js";

const LOOK_MS = { waiting: [20_000, 40_000], open: [4_000, 8_000] };
const FOLLOW_MS = {
  alone: { queued: [700, 1_500], unpaid: [8_000, 15_000] },
  besideStream: { queued: [4_000, 8_000], unpaid: [20_000, 40_000] },
};
const RESYNC_EVERY_MS = 180_000;
/** An order that may still change. */
const MOVING = ["queued", "unpaid"];

const sheet = new CSSStyleSheet();
sheet.replaceSync([
  ":host{display:inline-block;font:var(--seckill-font,inherit)}:host([hidden]){display:none}",
  "button{font:inherit;cursor:pointer;border:0;width:100%;padding:var(--seckill-padding,.75em 1.5em);",
  "border-radius:var(--seckill-radius,.5em);color:var(--seckill-color,#fff);",
  "background:var(--seckill-background,#c8102e)}",
  "button[aria-disabled]{cursor:default;color:var(--seckill-muted-color,#444);",
  "background:var(--seckill-muted,#ddd)}",
  "p{margin:.5em 0 0;font-size:.875em}p:empty{display:none}",
].join(""));

/** @type {any} */
const { src: script } = document.currentScript ?? document.querySelector("script[src$='/embed.js']") ?? {};
const clocks = new Map();

function clockOf(base) {
  if (!clocks.has(base)) {
    const time = () => ask("GET", `${base}/time`, { lang: "en", cache: "no-store", answerWithinMs: 3_000 });
    const clock = new ServerClock(async () => (await time()).now_ms);
    clocks.set(base, { clock, syncAt: 0 });
  }
  return clocks.get(base);
}

export class SeckillButton extends HTMLElement {
  static observedAttributes = ["item", "server", "quantity", "lang"];
  #button = document.createElement("button");
  #note = document.createElement("p");
  #timer = null;
  #drawnAt = 0;
  #state = "waiting";
  #token = null;
  #item = null;
  #missing = false;
  #lookAt = 0;
  #order = null;
  #followAt = 0;
  #sending = false;
  #coolUntil = 0;
  #said = "";
  #tokens = null;
  #stream = null;
  #listening = false;
  #listenAt = 0;
  #failures = 0;
  #lastEvent = "";

  constructor() {
    super();
    const root = this.attachShadow({ mode: "open", delegatesFocus: true });
    root.adoptedStyleSheets = [sheet];
    this.#button.type = "button";
    this.#button.part = "button";
    this.#button.addEventListener("click", () => this.#press());
    this.#note.part = "note";
    this.#note.setAttribute("role", "status");
    root.append(this.#button, this.#note);
  }

  /** The shop's JWT of the buyer, or a function that gives it, now or later. */
  get token() { return this.#token; }
  set token(token) {
    this.#token = token;
    this.#tokens?.clear();
    this.#hush();
    this.#said = "";
    if (this.isConnected) this.#tick();
  }

  /** The buyer's order, once there is one. */
  get order() { return this.#order; }

  /** Opens a payment for the order; the page leads the buyer to the address that this gives. */
  async pay(provider) {
    const path = `/orders/${encodeURIComponent(this.#order.order_no)}/payments`;
    const { payment_url: url } = await this.#asBuyer("POST", path, { body: { provider } });
    // The sandbox's cashier is a page of the server, and no page of whoever shows the button.
    return url && new URL(url, this.#base).href;
  }

  connectedCallback() {
    // Set before this script was there, it hides the property of the class.
    if (Object.hasOwn(this, "token")) {
      const { token } = this;
      delete this.token;
      this.token = token;
    }
    this.#begin();
  }

  disconnectedCallback() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#hush();
  }

  attributeChangedCallback(name, before, now) {
    if (this.isConnected && before !== now) this.#begin();
  }

  get #base() {
    return `${new URL(this.getAttribute("server") ?? script ?? "", location.href).origin}/api/v1`;
  }
  get #id() { return this.getAttribute("item"); }
  get #lang() {
    const wanted = this.lang || document.documentElement.lang || navigator.language || "en";
    return wanted.toLowerCase().startsWith("zh") ? "zh" : "en";
  }
  get #clock() { return clockOf(this.#base).clock; }
  get #now() { return this.#clock.now(); }

  #begin() {
    this.#tokens = new SaleTokens({
      fetchToken: async (itemId) => {
        const kind = this.#item?.challenge ?? "off", ask = this.#asBuyer.bind(this);
        // One that got a challenge a moment ago refuses; then the item is looked at again, and has it.
        if (kind === "off") return ask("POST", `/items/${itemId}/token`);
        // What solves it is fetched by those who meet one.
        await import(`${this.#base}/../../embed-challenge.js`);
        return seckillToken({ ask, itemId, kind });
      },
      now: () => this.#now,
    });
    this.#item = null;
    this.#missing = false;
    this.#lookAt = 0;
    this.#hush();
    this.#tick();
  }

  #ask(method, path, options) {
    return ask(method, this.#base + path, { lang: this.#lang, ...options });
  }

  async #asBuyer(method, path, options) {
    const bearer = await (typeof this.#token === "function" ? this.#token() : this.#token);
    return this.#ask(method, path, { bearer, ...options });
  }

  /** @param {unknown} [detail] */
  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(`seckill-${name}`, { detail, bubbles: true, composed: true }));
  }

  // --- what is known ---

  #tick() {
    clearTimeout(this.#timer);
    if (!this.isConnected || !this.#id) return;
    const shared = clockOf(this.#base);
    const now = this.#now;
    if (performance.now() >= shared.syncAt || this.#clock.slept()) {
      shared.syncAt = performance.now() + RESYNC_EVERY_MS;
      this.#clock.sync(shared.clock.synced ? 2 : 4).then((good) => {
        if (!good) shared.syncAt = performance.now() + between(2_000, 5_000);
        this.#tick();
      });
    }
    if (now >= this.#lookAt && !document.hidden) this.#look();
    if (MOVING.includes(this.#order?.status) && now >= this.#followAt) this.#follow(this.#order.order_no);
    const item = this.#item;
    if (item && this.#token && this.#clock.synced && !this.#order && item.left > 0) {
      this.#tokens.tend(this.#id, { opensAt: item.opens_at, closesAt: item.closes_at });
    }
    this.#draw(now);
    if (!this.#waitsForNews()) this.#hush();
    else if (now >= this.#listenAt) this.#listen();
    const moments = [item?.opens_at ?? 0, item?.closes_at ?? 0, this.#coolUntil];
    this.#timer = setTimeout(() => this.#tick(), nextTick(this.#drawnAt, moments, this.#now));
  }

  async #look() {
    this.#lookAt = Infinity;
    const id = this.#id;
    try {
      const item = await this.#ask("GET", `/items/${encodeURIComponent(id)}`);
      if (id !== this.#id) return;
      this.#item = item;
      this.#missing = false;
    } catch (problem) {
      if (problem.status === 404) this.#missing = true;
      if (!this.#item) this.#fail(problem);
    }
    const now = this.#now;
    const pace = this.#item && now >= this.#item.opens_at ? LOOK_MS.open : LOOK_MS.waiting;
    this.#lookAt = this.#item || this.#missing ? now + between(...pace) : now + between(1_000, 3_000);
    this.#tick();
  }

  async #follow(orderNo) {
    this.#followAt = Infinity;
    try {
      this.#hear(await this.#asBuyer("GET", `/orders/${encodeURIComponent(orderNo)}`));
    } catch { /* asked again */ }
    const { queued, unpaid } = this.#listening ? FOLLOW_MS.besideStream : FOLLOW_MS.alone;
    this.#followAt = this.#now + between(...(this.#order?.status === "unpaid" ? unpaid : queued));
    this.#tick();
  }

  // --- what is told ---

  #waitsForNews() {
    const waits = MOVING.includes(this.#order?.status) || this.#state === "sold_out";
    return waits && this.#token && !document.hidden && globalThis.EventSource;
  }

  async #listen() {
    this.#listenAt = Infinity;
    try {
      const { token } = await this.#asBuyer("POST", "/events/ticket");
      // A moment has passed: the buyer may be another, or have nothing to wait for.
      if (this.#listenAt < Infinity || !this.#waitsForNews()) return this.#hush();
      const query = new URLSearchParams({ ticket: token, items: this.#id, last_event_id: this.#lastEvent });
      this.#stream?.close();
      const stream = new EventSource(`${this.#base}/events?${query}`);
      this.#stream = stream;
      stream.onopen = () => { this.#listening = true; };
      // It would come back by itself with a ticket that is old by then.
      stream.onerror = () => this.#lost();
      for (const name of ["order", "sold_out", "back_in_stock"]) {
        stream.addEventListener(name, (event) => this.#told(name, event));
      }
    } catch {
      this.#lost();
    }
  }

  /** The net is pulled tight: asked at once, and then as if nobody had ever listened. */
  #lost() {
    this.#hush();
    this.#listenAt = this.#now + backoffMs(this.#failures);
    this.#failures += 1;
    this.#followAt = 0;
    this.#tick();
  }

  #hush() {
    this.#stream?.close();
    this.#stream = null;
    this.#listening = false;
    this.#listenAt = 0;
  }

  #told(name, { data, lastEventId }) {
    this.#lastEvent = lastEventId;
    this.#failures = 0;
    const known = this.#order;
    const told = JSON.parse(data);
    if (name !== "order") {
      if (this.#item) this.#item.left = name === "sold_out" ? 0 : Math.max(this.#item.left, 1);
    } else if (known?.order_no === told.order_no) {
      // What was on its way while somebody asked may be older than the answer.
      if (known.status === "queued" || told.status !== "queued") this.#hear(told);
    }
    this.#tick();
  }

  #hear(order) {
    const before = this.#order;
    this.#order = order;
    if (before?.order_no !== order.order_no || before.status !== order.status) this.#tell("order", order);
    // What is closed or void is over, and the buyer may try again.
    if (!MOVING.includes(order.status) && order.status !== "paid") {
      this.#order = null;
      this.#lookAt = 0;
    }
  }

  // --- what is done ---

  #press() {
    if (this.#state === "unpaid") return this.#tell("pay", this.#order);
    if (this.#state !== "ready" || this.#sending) return;
    if (!this.#token) {
      this.#said = inWords(this.#lang, "signIn");
      this.#tell("sign-in");
      return this.#tick();
    }
    this.#buy(this.#id, Math.max(1, Number(this.getAttribute("quantity")) || 1));
  }

  async #buy(id, quantity) {
    const kept = `seckill_pending:${this.#base}:${id}:${quantity}`;
    const key = pending(kept) ?? newKey();
    pending(kept, key);
    this.#sending = true;
    this.#said = "";
    this.#tick();
    const send = (token) => this.#ask("POST", `/items/${id}/claims`, {
      headers: { "X-Sale-Token": token, "Idempotency-Key": key }, body: { quantity },
    });
    try {
      const answer = await claim({ itemId: id, tokens: this.#tokens, send });
      pending(kept, null);
      this.#followAt = this.#now + Math.max(300, Math.min(answer.eta_ms ?? 0, 5_000));
      this.#tell("claimed", { item_id: Number(id), quantity, ...answer });
      this.#hear({ order_no: answer.order_no, item_id: Number(id), quantity, status: answer.status });
    } catch (problem) {
      if (!problem.unknown) pending(kept, null);
      this.#refused(problem);
    }
    this.#sending = false;
    this.#tick();
  }

  #refused(problem) {
    const { order_no: orderNo, opens_at: opensAt } = problem.body ?? {};
    this.#coolUntil = this.#now + coolDownMs(problem);
    if (problem.code === "sold_out" && this.#item) this.#item.left = 0;
    if (problem.code === "not_started") {
      if (this.#item && Number.isFinite(opensAt)) this.#item.opens_at = opensAt;
      clockOf(this.#base).syncAt = 0;
    }
    if (problem.status === 401) this.#tell("sign-in");
    if (orderNo) this.#follow(orderNo);
    this.#fail(problem);
  }

  /** @param {{code?: string, status?: number, body?: {detail?: string}}} problem */
  #fail({ code = "failed", status = 0, body = {} }) {
    this.#said = body.detail ?? "";
    this.#tell("error", { code, status, ...body });
  }

  // --- what is shown ---

  #draw(now) {
    this.#drawnAt = now;
    const before = this.#state;
    const item = this.#item ?? { opens_at: now, closes_at: now };
    const facts = {
      now, synced: this.#item && this.#clock.synced, opensAt: item.opens_at, closesAt: item.closes_at,
      activityState: item.state, itemState: item.state, left: item.left,
      sending: this.#sending, orderStatus: this.#order?.status, coolUntil: this.#coolUntil,
    };
    this.#state = this.#missing ? "missing" : buyState(facts);
    if (this.#state === "bought") this.#state = this.#order.status;
    let key = this.#state;
    if (key === "waiting") key = waitReason(facts);
    const time = clockText(facts.opensAt - now);
    const text = inWords(this.#lang, key, { time, seconds: Math.ceil((this.#coolUntil - now) / 1_000) });
    if (this.#button.textContent !== text) this.#button.textContent = text;
    if (this.#note.textContent !== this.#said) this.#note.textContent = this.#said;
    // Not `disabled`: a keyboard user may wait on the grey button and press it at the opening.
    if (["ready", "unpaid"].includes(key)) this.#button.removeAttribute("aria-disabled");
    else this.#button.setAttribute("aria-disabled", "true");
    this.dataset.state = this.#state;
    if (before !== this.#state && this.#state === "ready") this.#tell("ready");
  }
}

/** A key whose claim was never answered: asked with again, also after a reload. */
function pending(name, key) {
  try {
    if (key === undefined) return sessionStorage.getItem(name);
    if (key === null) sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, key);
  } catch { /* the page may keep nothing; then a reload is a new try */ }
  return null;
}

if (!customElements.get("seckill-button")) customElements.define("seckill-button", SeckillButton);
