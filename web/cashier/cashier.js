// The sandbox's cashier: plays the payment provider's page, including the ways it can misbehave.

import { askTime, call } from "../api.js";
import { between } from "../backoff.js";
import { ServerClock } from "../clock.js";
import { clockText, nextTick } from "../countdown.js";
import { byId, setAttribute, setText } from "../element.js";
import { language, locale, say, speaks } from "../i18n.js";
import { formatMoney } from "../money.js";
import { problemText } from "../problem.js";
import { words } from "./words.js";

/** In which states of the payment each action makes sense. */
const ALLOWED = {
  pay: ["open", "failed"],
  fail: ["open"],
  pay_twice: ["open", "failed"],
  pay_late: ["open", "failed", "closed"],
};
const LOOK_MS = [4_000, 6_000];
/** Who has paid here is led back to the shop after this. */
const BACK_AFTER_MS = 3_000;

const txn = decodeURIComponent(location.pathname.split("/").filter(Boolean).at(-1) ?? "");
/** The proof that this payment was opened for whoever looks at the page. */
const token = new URLSearchParams(location.search).get("token") ?? "";
/** Where the buyer goes when it is done: a page of this site, whatever the address says. */
const back = ownPage(new URLSearchParams(location.search).get("return_url"));
const path = `/cashier/${encodeURIComponent(txn)}?token=${encodeURIComponent(token)}`;
const clock = new ServerClock(askTime);
/** @type {NodeListOf<HTMLElement>} */
const buttons = document.querySelectorAll("[data-action]");

let payment = null;
let problem = null;
let busy = null;
let lookAt = 0;
let looking = false;
/** When the buyer is led back, by the page's own clock. Somebody who finds it paid already may look around. */
let leavesAt = null;

function ownPage(url) {
  try {
    const { origin, pathname, search } = new URL(url ?? "", location.origin);
    return url && origin === location.origin ? pathname + search : null;
  } catch {
    return null;
  }
}

async function look() {
  if (looking || busy) return;
  looking = true;
  try {
    const answer = await call("GET", path, { cache: "no-store" });
    // A press meanwhile knows better than a look that began before it.
    if (!busy) payment = answer;
    problem = null;
  } catch (caught) {
    if (payment === null) problem = caught;
  }
  looking = false;
  lookAt = clock.now() + between(...LOOK_MS);
  draw();
}

async function act(action) {
  if (busy || !payment || !ALLOWED[action].includes(payment.state)) return;
  busy = action;
  problem = null;
  draw();
  try {
    payment = await call("POST", path, { body: { action }, answerWithinMs: 30_000 });
    if (payment.state === "paid") leave();
  } catch (caught) {
    problem = caught;
  }
  busy = null;
  lookAt = 0;
  draw();
}

/** Back to the shop, with the seconds counted; not if the buyer opens something here meanwhile. */
function leave() {
  leavesAt = performance.now() + BACK_AFTER_MS;
  const count = () => {
    if (leavesAt === null) return draw();
    const left = leavesAt - performance.now();
    if (left <= 0) return location.assign(byId("back").href);
    draw();
    return setTimeout(count, 200);
  };
  count();
}

function drawDone() {
  const paid = payment.state === "paid";
  byId("done").hidden = !paid;
  byId("pay").hidden = paid;
  const seconds = leavesAt === null ? null : Math.max(1, Math.ceil((leavesAt - performance.now()) / 1_000));
  setText(byId("going"), seconds === null ? "" : say(words, "going", { seconds }));
}

function drawDeadline(now = clock.now()) {
  const left = payment?.pay_deadline ? payment.pay_deadline - now : null;
  const shown = left !== null && clock.synced && (payment.state === "open" || payment.state === "failed");
  byId("due").hidden = !shown;
  setText(byId("due-label"), say(words, left > 0 ? "payWithin" : "deadlineOver"));
  setText(byId("deadline"), left > 0 ? clockText(left) : "");
}

function draw() {
  document.title = `${say(words, "title")} · Seckill`;
  byId("payment").hidden = payment === null;
  const failure = problem?.code === "bad_token" ? say(words, "wrongAddress") : problem && problemText(problem, language());
  const trouble = failure ?? (payment === null ? say(words, "loading") : "");
  setText(byId("note"), trouble);
  byId("note").hidden = trouble === "";
  drawDeadline();
  if (payment === null) return;
  setText(byId("item"), payment.item_name ?? "");
  setText(byId("amount"), formatMoney(payment.amount, payment.currency, locale()));
  setText(byId("order-no"), payment.order_no);
  setText(byId("txn"), payment.txn);
  const amount = formatMoney(payment.amount, payment.currency, locale());
  setText(byId("pay"), busy ? say(words, "working") : say(words, payment.state === "failed" ? "payAgain" : "pay", { amount }));
  setAttribute(byId("pay"), "class", busy ? "pay busy" : "pay");
  const told = { failed: "state_failed", closed: "state_closed", refunded: "state_refunded" }[payment.state];
  setText(byId("state"), told && !busy ? say(words, told) : "");
  byId("tests").hidden = false;
  drawDone();
  setAttribute(byId("payment"), "data-state", payment.state);
  // A provider sends back whoever has paid; who leaves before that goes where they came from.
  setAttribute(byId("back"), "href", payment.state === "paid" && back ? back : "/#orders");
  for (const button of buttons) {
    const allowed = !busy && ALLOWED[button.dataset.action].includes(payment.state);
    setAttribute(button, "aria-disabled", allowed ? null : "true");
  }
}

function tick() {
  const now = clock.now();
  if (!document.hidden) {
    drawDeadline(now);
    // Late money can still turn a closed payment; one that does not exist, or is not ours, stays that way.
    const settled = ["paid", "refunded"].includes(payment?.state) || [403, 404].includes(problem?.status);
    if (!settled && now >= lookAt) look();
  }
  setTimeout(tick, nextTick(now, payment?.pay_deadline ? [payment.pay_deadline] : [], clock.now()));
}

for (const button of buttons) {
  button.addEventListener("click", () => act(button.dataset.action));
}
byId("tests").addEventListener("toggle", () => { leavesAt = null; });
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) clock.sync(2).then(() => { lookAt = 0; draw(); });
});

speaks(words, draw);
clock.sync(3).then(() => { lookAt = Math.min(lookAt, clock.now() + LOOK_MS[1]); draw(); });
tick();
