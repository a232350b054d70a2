// The shop page. One tick per second (and one exactly at every opening) draws everything from what is
// known; clock, catalog, tokens and orders learn in their own time and ask for a draw.

import { askTime, call } from "../api.js";
import { between } from "../backoff.js";
import { ServerClock } from "../clock.js";
import { nextTick } from "../countdown.js";
import { byId, setAttribute, setChildren, setText } from "../element.js";
import { say, speaks } from "../i18n.js";
import { Problem } from "../problem.js";
import { recall } from "../storage.js";
import { ActivitySection } from "./activity_section.js";
import { coolDownMs } from "./buy_state.js";
import { Buyer } from "./buyer.js";
import { Catalog, inShopOrder } from "./catalog.js";
import { solution } from "./challenge.js";
import { claim, newKey } from "./claim.js";
import { Follower } from "./follower.js";
import { ItemCard } from "./item_card.js";
import { OrderBook } from "./order_book.js";
import { OrderCard } from "./order_card.js";
import { deviceOf, payInsideApp, returnedOrder, waysToPay, webAddress } from "./pay_ways.js";
import { phase } from "./phase.js";
import { readPicture } from "./picture.js";
import { dropPending, keepPending, keepReceipt, pendingOf } from "./receipts.js";
import { SaleTokens } from "./sale_token.js";
import { SignInBox } from "./sign_in.js";
import { saleToken } from "./token_request.js";
import { words } from "./words.js";

const RESYNC_MS = [120_000, 240_000];
/** More tokens than anybody can use at once would only load the server before the opening. */
const TOKENS_TENDED_MAX = 6;
const ORDERS_SHOWN_MAX = 50;
/** Who pays, as WeChat knows them (openid); the shop that shows this page inside WeChat hands it over. */
const PAYER = "seckill_payer";
/** Reading a picture takes people a while; they are asked so much earlier. */
const READING_MS = 60_000;

const clock = new ServerClock(askTime);
const now = () => clock.now();
const book = new OrderBook();
const catalog = new Catalog({ ask: () => call("GET", "/activities"), now });
const buyer = new Buyer({ now, onChange: buyerChanged });
const tokens = new SaleTokens({
  fetchToken: (itemId) => saleToken({
    ask: buyer.ask.bind(buyer), itemId, kind: catalog.item(itemId)?.item.challenge,
    solve: (asked) => solution({
      ...asked, read: readPicture, progress: (part) => { attemptOf(itemId).solving = part; },
    }),
  }).finally(() => { attemptOf(itemId).solving = 1; }),
  now,
});
const follower = new Follower({ buyer, book, now, onNews: draw });
const signInBox = new SignInBox(buyer);

const sections = new Map();
const cards = new Map();
const orderCards = new Map();
/** What this page did about each item: {sending, position, coolUntil, problem, solving}. */
const attempts = new Map();
const phases = new Map();
/** Orders whose buyers came back from a provider's page, and when. */
const returned = new Map();
const device = deviceOf(navigator);
const onScreen = new Set();

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const id = Number(target.dataset.item);
    if (isIntersecting) onScreen.add(id);
    else onScreen.delete(id);
  }
});

function attemptOf(itemId) {
  if (!attempts.has(itemId)) attempts.set(itemId, { sending: false, position: null, coolUntil: 0, problem: null });
  return attempts.get(itemId);
}

function buyerChanged() {
  tokens.clear();
  attempts.clear();
  follower.restart();
  draw();
}

// --- buying ---

async function buy(itemId, quantity) {
  const attempt = attemptOf(itemId);
  if (attempt.sending) return;
  if (!buyer.signedIn) {
    attempt.problem = new Problem({ code: "sign_in" });
    draw();
    signInBox.invite();
    return;
  }
  const user = buyer.user;
  Object.assign(attempt, { sending: true, position: null, problem: null });
  draw();
  const left = pendingOf(user, itemId);
  const key = left?.quantity === quantity ? left.key : newKey();
  keepPending(user, itemId, { key, quantity });
  try {
    const answer = await claim({ itemId, tokens, send: (token) => sendClaim(itemId, quantity, key, token) });
    dropPending(user, itemId);
    keepReceipt(user, { order_no: answer.order_no, receipt: answer.receipt, item_id: itemId, claimed_at: now() });
    if (user === buyer.user) admitted(itemId, quantity, attempt, answer);
  } catch (problem) {
    if (!problem.unknown) dropPending(user, itemId);
    if (user === buyer.user) await refused(itemId, attempt, problem);
  }
  attempt.sending = false;
  draw();
}

const sendClaim = (itemId, quantity, key, token) => call("POST", `/items/${itemId}/claims`, {
  headers: { "X-Sale-Token": token, "Idempotency-Key": key },
  body: { quantity },
});

function admitted(itemId, quantity, attempt, answer) {
  const item = catalog.item(itemId)?.item;
  attempt.position = answer.position ?? null;
  follower.admitted({
    order_no: answer.order_no, item_id: itemId, quantity, status: answer.status ?? "queued",
    amount: item ? item.price * quantity : null, currency: item?.currency, item_name: item?.name,
  }, answer.eta_ms);
}

async function refused(itemId, attempt, problem) {
  attempt.problem = problem;
  attempt.coolUntil = now() + coolDownMs(problem);
  const known = catalog.item(itemId);
  if (problem.code === "sold_out" && known) known.item.left = 0;
  // Both name the order that the buyer has: the second is a claim asked for again with another quantity.
  const held = problem.code === "already_bought" || problem.code === "key_reused";
  if (held && problem.body.order_no) await follower.look(problem.body.order_no);
  if (problem.code === "not_started" && known) {
    // Either our clock or our idea of the opening was wrong; correct both, and the button waits again.
    if (Number.isFinite(problem.body.opens_at)) known.activity.opens_at = problem.body.opens_at;
    await clock.sync(3);
  }
}

const failure = (key) => new Problem({ code: "failed", body: { detail: say(words, key) } });

/** A provider that does not answer is not the shop being busy: the buyer may take another. */
async function open(orderNo, asked) {
  try {
    return await buyer.ask("POST", `/orders/${encodeURIComponent(orderNo)}/payments`, asked);
  } catch (problem) {
    throw problem.code === "busy" ? failure("providerBusy") : problem;
  }
}

/** Opens a payment. Resolves to what was opened if it is a code to be shown here. */
async function pay(orderNo, { provider, method }) {
  const opened = await open(orderNo, {
    body: {
      provider, method, return_url: `/?order=${encodeURIComponent(orderNo)}`,
      ...(method === "app" ? { payer: recall(PAYER) } : {}),
    },
    answerWithinMs: 15_000,
  });
  follower.expect(orderNo);
  if (opened.app) return payInApp(orderNo, opened.app);
  if (opened.qr) return opened;
  if (!opened.payment_url) throw failure("payElsewhere");
  const target = webAddress(opened.payment_url, location.href);
  if (!target) throw failure("badPaymentUrl");
  location.assign(target);
  return null;
}

async function payInApp(orderNo, parameters) {
  const told = await payInsideApp(parameters);
  if (told === "fail") throw failure("appFailed");
  if (told === "ok") returned.set(orderNo, now());
  return null;
}

/** The buyer comes from a provider's page: their money may be known already, or be on its way. */
function welcomeBack() {
  const back = returnedOrder(location.href);
  if (!back) return;
  returned.set(back.order, now());
  history.replaceState(null, "", back.clean);
  follower.expect(back.order);
}

async function cancel(orderNo) {
  try {
    await buyer.ask("POST", `/orders/${encodeURIComponent(orderNo)}/cancel`);
  } finally {
    // Whoever came first won; what is true now is what counts.
    await follower.look(orderNo);
    catalog.lookSoon();
  }
}

// --- drawing ---

function cardOf(item) {
  if (!cards.has(item.id)) {
    const card = new ItemCard(item.id, {
      onBuy: (quantity) => buy(item.id, quantity),
      onOrder: () => showOrder(book.liveOf(item.id)?.order_no),
    });
    cards.set(item.id, card);
    watcher.observe(card.node);
  }
  return cards.get(item.id);
}

function showOrder(orderNo) {
  const node = orderCards.get(orderNo)?.node ?? byId("orders");
  node.scrollIntoView({ block: "center" });
  node.focus({ preventScroll: true });
}

function drawActivities(time) {
  const activities = inShopOrder(catalog.activities, time);
  for (const activity of activities) {
    if (!sections.has(activity.id)) sections.set(activity.id, new ActivitySection(activity.id));
    sections.get(activity.id).update({
      activity, now: time, synced: clock.synced, cards: activity.items.map((item) => cardOf(item).node),
    });
    for (const item of activity.items) {
      cardOf(item).update({
        item, activity, now: time, synced: clock.synced, attempt: attemptOf(item.id), order: book.liveOf(item.id),
      });
    }
  }
  setChildren(byId("activities"), activities.map(({ id }) => sections.get(id).node));
  const empty = !catalog.loaded ? "loading" : activities.length === 0 ? "nothing" : null;
  const note = catalog.stale ? "stale" : empty;
  setText(byId("sale-note"), note ? say(words, note) : "");
  byId("sale-note").hidden = note === null;
}

function drawOrders(time) {
  const orders = book.shown().slice(0, ORDERS_SHOWN_MAX);
  for (const order of orders) {
    const no = order.order_no;
    if (!orderCards.has(no)) {
      orderCards.set(no, new OrderCard(no, { onPay: (way) => pay(no, way), onCancel: () => cancel(no) }));
    }
    const itemName = order.item_name ?? catalog.item(order.item_id)?.item.name ?? say(words, "itemNo", { id: order.item_id });
    const payWith = order.pay_with ?? shop.pay_with;
    const ways = order.status === "unpaid" ? waysToPay(payWith, device, recall(PAYER)) : [];
    orderCards.get(no).update({
      order, itemName, now: time, ways, titles: shop.titles, returnedAt: returned.get(no) ?? null,
    });
  }
  setChildren(byId("order-list"), orders.map(({ order_no }) => orderCards.get(order_no).node));
  const toPay = orders.filter(({ status }) => status === "unpaid").length;
  setText(byId("orders-count"), toPay > 0 ? String(toPay) : "");
  setText(byId("orders-note"), say(words, buyer.signedIn ? "noOrders" : "ordersSignedOut"));
  byId("orders-note").hidden = orders.length > 0;
}

/** Says aloud, once, that a sale has opened: a countdown is silent to a screen reader. */
function announce(time) {
  for (const activity of clock.synced ? catalog.activities : []) {
    const stage = phase(activity, time);
    if (phases.get(activity.id) === "soon" && stage === "open") {
      setText(byId("announce"), say(words, "isOpen", { name: activity.name }));
    }
    phases.set(activity.id, stage);
  }
}

let drawnAt = 0;

function draw() {
  const time = now();
  drawnAt = time;
  document.title = `${say(words, "title")} · Seckill`;
  signInBox.draw();
  drawActivities(time);
  drawOrders(time);
  announce(time);
  setAttribute(document.body, "data-ready", catalog.loaded && clock.synced);
}

// --- the shop itself ---

/** Where an order can be paid here, and what people call it. */
let shop = { pay_with: [], titles: {} };

/** Learns how buyers sign in and pay here; asked again until somebody answers. */
async function learnShop() {
  try {
    const { dev_login: devLogin, pay_with: payWith } = await call("GET", "/shop");
    shop = { pay_with: payWith, titles: Object.fromEntries(payWith.map(({ provider, title }) => [provider, title])) };
    signInBox.offer(devLogin);
    draw();
  } catch {
    setTimeout(learnShop, between(2_000, 5_000));
  }
}

// --- time ---

let resyncAt = 0;

async function syncClock(samples) {
  resyncAt = Infinity;
  const good = await clock.sync(samples);
  resyncAt = now() + (good ? between(...RESYNC_MS) : between(2_000, 5_000));
  catalog.replan();
  draw();
}

function tendTokens() {
  if (!buyer.signedIn || !clock.synced) return;
  const wanted = [...onScreen].slice(0, TOKENS_TENDED_MAX);
  for (const itemId of wanted) {
    const known = catalog.item(itemId);
    if (!known || known.activity.state === "ended" || book.liveOf(itemId)) continue;
    // Nobody needs a pass to an empty shelf; should units come back, the press itself fetches one.
    if (known.item.left <= 0) continue;
    const early = known.item.challenge === "captcha" ? READING_MS : 0;
    tokens.tend(itemId, { opensAt: known.activity.opens_at - early, closesAt: known.activity.closes_at });
  }
}

function moments() {
  const all = [];
  for (const { opens_at: opens, closes_at: closes } of catalog.activities) all.push(opens, closes);
  for (const { coolUntil } of attempts.values()) all.push(coolUntil);
  for (const { pay_deadline: deadline } of book.moving()) if (deadline) all.push(deadline);
  return all;
}

let ticker = null;

function tick() {
  clearTimeout(ticker);
  if (document.hidden) drawnAt = now();
  else {
    if (now() >= resyncAt || clock.slept()) {
      if (resyncAt !== Infinity) syncClock(2);
    }
    draw();
    catalog.tend().then((learnt) => { if (learnt) draw(); });
  }
  tendTokens();
  ticker = setTimeout(tick, nextTick(drawnAt, moments(), now()));
}

function visibilityChanged() {
  if (!document.hidden) {
    syncClock(3);
    catalog.lookSoon();
    tick();
  }
  follower.visibilityChanged(!document.hidden);
}

document.addEventListener("visibilitychange", visibilityChanged);
// Back from the cashier by the back button: browsers may show the page as it was left.
window.addEventListener("pageshow", (event) => { if (event.persisted) visibilityChanged(); });

speaks(words, draw);
learnShop();
syncClock(4);
follower.restart();
welcomeBack();
tick();
