// The shop page. One tick per second (and one exactly at every opening) draws everything from what is
// known; clock, catalog, tokens and orders learn in their own time and ask for a draw.

import { askTime, call } from "../api.js";
import { between } from "../backoff.js";
import { ServerClock } from "../clock.js";
import { clockText, nextTick } from "../countdown.js";
import { byId, setAttribute, setChildren, setText } from "../element.js";
import { say, speaks } from "../i18n.js";
import { Problem } from "../problem.js";
import { recall } from "../storage.js";
import { ActivitySection, stageOf } from "./activity_section.js";
import { coolDownMs } from "./buy_state.js";
import { Buyer } from "./buyer.js";
import { Catalog, shopOrder } from "./catalog.js";
import { solution } from "./challenge.js";
import { claim, newKey } from "./claim.js";
import { Follower } from "./follower.js";
import { Places, hottestFirst } from "./heat.js";
import { ItemCard } from "./item_card.js";
import { ItemPage, itemOf, saleOf } from "./item_page.js";
import { OrderBook } from "./order_book.js";
import { OrderCard } from "./order_card.js";
import { deviceOf, payInsideApp, returnedOrder, waysToPay, webAddress } from "./pay_ways.js";
import { FINAL_MS, phase } from "./phase.js";
import { readPicture } from "./picture.js";
import { ReceiptBox } from "./receipt_box.js";
import { dropPending, keepPending, keepReceipt, pendingOf, receiptFor } from "./receipts.js";
import { SaleTokens } from "./sale_token.js";
import { SignInBox } from "./sign_in.js";
import { saleToken } from "./token_request.js";
import { drawTrouble } from "./trouble.js";
import { WonBar } from "./won_bar.js";
import { words } from "./words.js";

const RESYNC_MS = [120_000, 240_000];
/** A clock that was set longer ago is set again in the last minute before an opening, each page at its own moment. */
const FRESH_MS = 45_000;
const LAST_SYNC_MS = [15_000, 40_000];
/** More tokens than anybody can use at once would only load the server before the opening. */
const TOKENS_TENDED_MAX = 6;
const ORDERS_SHOWN_MAX = 50;
const CLAIM_WITHIN_MS = 10_000;
/** Who pays, as WeChat knows them (openid); the shop that shows this page inside WeChat hands it over. */
const PAYER = "seckill_payer";
/** Reading a picture takes people a while; they are asked so much earlier. */
const READING_MS = 60_000;

const clock = new ServerClock(askTime);
const now = () => clock.now();
const book = new OrderBook();
/** The one item that this page is about, if its address names one. */
const only = itemOf(location.pathname);
const catalog = new Catalog({
  ask: only === null ? () => call("GET", "/activities")
    : async () => ({ activities: [saleOf(await call("GET", `/items/${only}`))] }),
  now,
});
const buyer = new Buyer({ now, onChange: buyerChanged });
const tokens = new SaleTokens({
  fetchToken: (itemId) => saleToken({
    ask: buyer.ask.bind(buyer), itemId, kind: catalog.item(itemId)?.item.challenge,
    solve: (asked) => solution({
      ...asked, read: readPicture, progress: (part) => { attemptOf(itemId).solving = part; },
    }),
  }).catch((problem) => {
    // Final for this buyer: asking again would not change it.
    if (problem.code === "not_eligible") Object.assign(attemptOf(itemId), { barred: true, problem });
    throw problem;
  }).finally(() => { attemptOf(itemId).solving = 1; }),
  now,
});
const follower = new Follower({ buyer, book, now, onNews: draw });
const signInBox = new SignInBox(buyer);
const wonBar = new WonBar({ onPay: (no) => payFromBar(no) });
const itemPage = new ItemPage({ onPicture: (url) => cards.get(only)?.show(url) });
const receiptBox = new ReceiptBox({ onShow: showReceipt });

const sections = new Map();
const cards = new Map();
const orderCards = new Map();
const places = { activities: new Places(), items: new Places() };
/** What this page did about each item: {sending, position, expectedAt, coolUntil, problem, solving, barred}. */
const attempts = new Map();
const phases = new Map();
/** Orders whose buyers came back from a provider's page, and when. */
const returned = new Map();
const device = deviceOf(navigator);
const onScreen = new Set();

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const id = Number(target.getAttribute("data-item"));
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

/** In a draw everybody is answered together, when it is over. */
function sendClaim(itemId, quantity, key, token) {
  const drawMs = catalog.item(itemId)?.item.draw?.shuffle_ms ?? 0;
  return call("POST", `/items/${itemId}/claims`, {
    headers: { "X-Sale-Token": token, "Idempotency-Key": key },
    body: { quantity },
    answerWithinMs: CLAIM_WITHIN_MS + drawMs,
  });
}

function admitted(itemId, quantity, attempt, answer) {
  const item = catalog.item(itemId)?.item;
  attempt.position = answer.position ?? null;
  attempt.expectedAt = now() + (answer.eta_ms ?? 0);
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

/** The bar is short: several ways to pay are chosen from at the order. */
function payFromBar(orderNo) {
  showOrder(orderNo);
  orderCards.get(orderNo)?.pressPay();
}

async function showReceipt(receipt) {
  const order = await buyer.ask("POST", "/receipts", { body: { receipt } });
  keepReceipt(buyer.user, { order_no: order.order_no, receipt, item_id: order.item_id, claimed_at: now() });
  book.hear(order);
  draw();
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

/** From when this buyer may buy: members come before the others, and their token says so. */
const opensFor = (item, activity) => tokens.opensAt(item.id) ?? activity.opens_at;

function drawActivities(time) {
  const activities = places.activities.inOrder(catalog.activities, shopOrder(time));
  for (const activity of activities) {
    if (!sections.has(activity.id)) sections.set(activity.id, new ActivitySection(activity.id));
    const items = places.items.inOrder(activity.items, hottestFirst);
    for (const item of items) {
      cardOf(item).update({
        item, activity, now: time, synced: clock.synced, attempt: attemptOf(item.id), order: book.liveOf(item.id),
        opensAt: opensFor(item, activity), signedIn: buyer.signedIn,
      });
    }
    sections.get(activity.id).update({
      activity, now: time, synced: clock.synced, cards: items.map((item) => cardOf(item).node),
    });
  }
  setChildren(byId("activities"), activities.map(({ id }) => sections.get(id).node));
  const shown = only === null ? null : catalog.item(only);
  if (shown) itemPage.update(shown.item);
  const missing = catalog.missing ? "noItem" : null;
  const note = missing ?? (!catalog.loaded ? "loading" : activities.length === 0 ? "nothing" : null);
  setText(byId("sale-note"), note ? say(words, note) : "");
  byId("sale-note").hidden = note === null;
}

const nameOf = (order) => order.item_name ?? catalog.item(order.item_id)?.item.name
  ?? say(words, "itemNo", { id: order.item_id });

function drawOrders(time) {
  const orders = book.shown().slice(0, ORDERS_SHOWN_MAX);
  for (const order of orders) {
    const no = order.order_no;
    if (!orderCards.has(no)) {
      orderCards.set(no, new OrderCard(no, { onPay: (way) => pay(no, way), onCancel: () => cancel(no) }));
    }
    const payWith = order.pay_with ?? shop.pay_with;
    const ways = order.status === "unpaid" ? waysToPay(payWith, device, recall(PAYER)) : [];
    orderCards.get(no).update({
      order, itemName: nameOf(order), receipt: receiptFor(buyer.user, no), now: time, ways, titles: shop.titles, returnedAt: returned.get(no) ?? null,
    });
  }
  setChildren(byId("order-list"), orders.map(({ order_no }) => orderCards.get(order_no).node));
  const toPay = orders.filter(({ status }) => status === "unpaid").length;
  setText(byId("orders-count"), toPay > 0 ? String(toPay) : "");
  setText(byId("orders-note"), say(words, buyer.signedIn ? "noOrders" : "ordersSignedOut"));
  byId("orders-note").hidden = orders.length > 0;
  setChildren(byId("receipts"), [receiptBox.node]);
  receiptBox.draw(buyer.signedIn);
}

/** The tab's title: what is to be paid, the last minute before an opening, or just the shop's name. */
function titleAt(time, won) {
  if (won) return won;
  const openings = clock.synced ? catalog.activities.filter((one) => stageOf(one, time, true) === "final") : [];
  const next = Math.min(...openings.map((one) => one.opens_at));
  if (openings.length > 0) return say(words, "titleFinal", { time: clockText(next - time) });
  const just = catalog.activities.some((one) => phase(one, time) === "open" && time - one.opens_at < FINAL_MS);
  const name = only === null ? null : catalog.item(only)?.item.name;
  return just && clock.synced ? say(words, "titleOpen") : name ?? say(words, "title");
}

function drawWon(time) {
  const queued = book.moving().find(({ status }) => status === "queued");
  const expectedAt = queued ? attemptOf(queued.item_id).expectedAt : null;
  return wonBar.update({ orders: book.moving(), nameOf, expectedAt, now: time });
}

/** Says aloud, once, that a sale has opened: a countdown is silent to a screen reader. */
function announce(time) {
  for (const activity of clock.synced ? catalog.activities : []) {
    const stage = phase(activity, time);
    if (phases.get(activity.id) === "soon" && stage === "open") {
      setText(byId("announce"), say(words, "isOpen", { name: activity.name || nameOf({ item_id: only }) }));
    }
    phases.set(activity.id, stage);
  }
}

let drawnAt = 0;

function draw() {
  const time = now();
  drawnAt = time;
  signInBox.draw();
  drawActivities(time);
  drawOrders(time);
  document.title = `${titleAt(time, drawWon(time))} · Seckill`;
  drawTrouble({ online: navigator.onLine, stale: catalog.stale, expired: buyer.expired });
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
let syncedAt = -Infinity;
/** How long before an opening this page sets its clock for the last time; a crowd does not do so at once. */
const lastSyncMs = between(...LAST_SYNC_MS);

/** In the last minute the clock should be fresh. */
function opensSoon(time) {
  const soon = ({ opens_at: opens }) => opens > time && opens - time < lastSyncMs;
  return time - syncedAt > FRESH_MS && catalog.activities.some(soon);
}

async function syncClock(samples) {
  resyncAt = Infinity;
  const good = await clock.sync(samples);
  syncedAt = good ? now() : -Infinity;
  resyncAt = now() + (good ? between(...RESYNC_MS) : between(2_000, 5_000));
  catalog.replan();
  draw();
}

function tendTokens() {
  if (!buyer.signedIn || !clock.synced) return;
  const wanted = [...onScreen].slice(0, TOKENS_TENDED_MAX);
  for (const itemId of wanted) {
    const known = catalog.item(itemId);
    if (!known || known.activity.state === "ended" || book.liveOf(itemId) || attemptOf(itemId).barred) continue;
    // Nobody needs a pass to an empty shelf; should units come back, the press itself fetches one.
    if (known.item.left <= 0) continue;
    const early = known.item.challenge === "captcha" ? READING_MS : 0;
    const { opens_at: opens, members_from: members, closes_at: closesAt } = known.activity;
    tokens.tend(itemId, { opensAt: Math.min(opens, members ?? opens) - early, closesAt });
  }
}

function moments() {
  const all = [];
  for (const { opens_at: opens, closes_at: closes, members_from: members } of catalog.activities) {
    all.push(opens, closes, members ?? opens);
  }
  for (const { resumes_at: resumes } of catalog.activities) if (resumes) all.push(resumes);
  for (const { coolUntil } of attempts.values()) all.push(coolUntil);
  for (const { pay_deadline: deadline } of book.moving()) if (deadline) all.push(deadline);
  return all;
}

let ticker = null;

function tick() {
  clearTimeout(ticker);
  if (document.hidden) drawnAt = now();
  else {
    if (now() >= resyncAt || clock.slept() || opensSoon(now())) {
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

/** The network is there again: everything that was waiting for its turn asks now. */
function backOnline() {
  draw();
  syncClock(3);
  catalog.lookNow();
  if (buyer.signedIn) follower.refresh();
  tick();
}

document.addEventListener("visibilitychange", visibilityChanged);
window.addEventListener("online", backOnline);
window.addEventListener("offline", draw);
// Back from the cashier by the back button: browsers may show the page as it was left.
window.addEventListener("pageshow", (event) => { if (event.persisted) visibilityChanged(); });

document.body.classList.toggle("one", only !== null);
speaks(words, draw);
learnShop();
syncClock(4);
follower.restart();
welcomeBack();
tick();
