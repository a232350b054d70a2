// One order: what it is, its whole story, and what can be done with it.

import { el } from "../element.js";
import { call, query } from "./call.js";
import { button, card, confirm, facts, field, link, note, pill } from "./parts.js";
import { money, named, number, t, time } from "./text.js";

const STORY_TONES = { claimed: "good", settled: "good", paid: "good", failed: "bad", void: "bad", closed: "warn", refunded: "warn" };

function detailOf({ kind, detail: d }) {
  switch (kind) {
    case "claimed": return t("story_claimed_more", { n: number(d.quantity) });
    case "stock": return t("story_stock_more", { by: d.quantity > 0 ? `+${d.quantity}` : `−${-d.quantity}`, before: number(d.before), after: number(d.after) });
    case "settled": return d.pay_deadline ? t("story_settled_more", { time: time(d.pay_deadline) }) : "";
    case "failed": return `${named("letter", d.state)} · ${t("tries_n", { n: d.tries })} · ${d.cause}`;
    case "payment_opened": case "paid": case "refunded": return `${d.provider} ${d.provider_txn} · ${money(d.amount, d.currency)}`;
    case "webhook": return `${d.type} → ${d.endpoint} · ${named("delivery", d.state)} · ${t("tries_n", { n: d.tries })}${d.cause ? ` · ${d.cause}` : ""}`;
    default: return d?.reason ? named("reason", d.reason) : "";
  }
}

const step = (at, what, more, tone = "") => el("li", { class: tone }, el("b", {}, what), more ? el("span", {}, more) : null, el("small", {}, time(at)));

/** What happened, and what operators did about it, in one line of time. */
function storyOf(events, deeds) {
  const all = [
    ...events.map((event) => ({ at: event.at, row: () => step(event.at, t(`story_${event.kind}`), detailOf(event), event.detail?.state === "failed" ? "bad" : STORY_TONES[event.kind]) })),
    ...deeds.map((deed) => ({ at: deed.created_at, row: () => step(deed.created_at, t("story_deed", { who: deed.who }), deed.action, "warn") })),
  ];
  all.sort((a, b) => a.at - b.at);
  return el("ol", { class: "story" }, all.map(({ row }) => row()));
}

export async function order({ role, params: [no], again }) {
  const [{ order: found, payments, refunds_waiting: owed }, { events }, audit] = await Promise.all([
    call("GET", `/orders/${no}`), call("GET", `/orders/${no}/story`), call("GET", `/audit${query({ target: `order:${no}`, limit: 100 })}`),
  ]);
  const told = note();
  const actions = el("div", { class: "actions" });
  const add = (when, text, act, kind = "") => { if (when) actions.append(button(text, act, { note: told, kind })); };
  /** Whatever was answered, the page is read again. */
  const after = async (/** @type {unknown} */ _answer) => again();
  add(role !== "viewer" && found.status === "unpaid", t("cancel_order"), () => confirm({
    title: t("cancel_title", { no }), says: [t("cancel_says_1"), t("cancel_says_2")], yes: t("cancel_order"), danger: true,
    act: async () => after(await call("POST", `/orders/${no}/cancel`)),
  }));
  add(role === "admin" && found.status === "paid", t("refund"), () => {
    const words = el("input", { maxlength: "200" });
    return confirm({
      title: t("refund_title", { no }), says: [t("refund_says_1", { amount: money(found.amount, found.currency) }), t("refund_says_2"), t("refund_says_3")],
      fields: [field(t("refund_note"), words)], yes: t("refund"), danger: true,
      act: async () => after(await call("POST", `/orders/${no}/refund`, words.value.trim() ? { body: { note: words.value.trim() } } : {})),
    });
  }, "danger");
  const byHand = (verb, says) => {
    const reference = el("input", { required: true, maxlength: "64", autocomplete: "off" });
    const reason = el("input", { required: true, maxlength: "200" });
    return confirm({
      title: t(`${verb}_title`, { no }), says, fields: [field(t("reference"), reference, t("reference_hint")), field(t("reason"), reason)], yes: t(verb),
      act: async () => after(await call("POST", `/orders/${no}/${verb.replace("_", "-")}`, { body: { reference: reference.value.trim(), reason: reason.value.trim() } })),
    });
  };
  add(role === "admin" && found.status === "unpaid", t("mark_paid"), () => byHand("mark_paid", [t("mark_paid_says_1", { amount: money(found.amount, found.currency) }), t("mark_paid_says_2")]));
  add(role === "admin" && found.status === "refunding", t("mark_refunded"), () => byHand("mark_refunded", [t("mark_refunded_says_1"), t("mark_refunded_says_2")]));
  if (found.failed) actions.append(link(`/dead-letters?order_no=${no}`, t("its_letter")));

  const about = card(null, facts([
    [t("buyer"), found.user_id ?? "–"], [t("item"), link(`/sale/${found.activity_id}`, found.item_name)], found.sku ? ["SKU", found.sku] : null,
    [t("units"), number(found.quantity)], [t("amount"), money(found.amount, found.currency)],
    [t("made"), time(found.created_at)], found.status === "unpaid" ? [t("pay_deadline"), time(found.pay_deadline)] : null, [t("paid_at"), time(found.paid_at)],
    found.reason ? [t("reason"), named("reason", found.reason)] : null,
    payments.length > 0 ? [t("payments"), payments.map((row) => row.provider_txn).filter((txn, i, all) => all.indexOf(txn) === i).join(", ")] : null,
  ]), actions, told.line);
  const waiting = owed.length === 0 ? null : card(t("refunds_waiting"), el("ul", { class: "says" }, owed.map((row) => el("li", {}, `${row.provider} ${row.provider_txn} · ${t("tries_n", { n: row.tries })}${row.cause ? ` · ${row.cause}` : ""}`))));
  return {
    place: el("div", { class: "view" },
      el("header", {}, el("div", { class: "actions" }, el("h1", { class: "mono" }, found.order_no), pill("order", found.failed ?? found.status)), link("/orders", t("all_orders"))),
      about, ...(waiting ? [waiting] : []), card(t("story"), storyOf(events, audit.entries))),
  };
}
