// One sale: what it is, what it came to, and what can be done with it. Whatever changes something says first
// what will happen.

import { el } from "../element.js";
import { call } from "./call.js";
import { button, card, confirm, facts, field, link, note, pill, table } from "./parts.js";
import { pauseSale } from "./pausing.js";
import { preflight } from "./preflight.js";
import { phaseOf } from "./sales.js";
import { fromLocal, toLocal } from "./times.js";
import { money, named, number, span, t, time, zone } from "./text.js";

export async function sale({ live, role, params: [id], again }) {
  const found = await call("GET", `/activities/${id}`);
  const told = note();
  const may = role !== "viewer";
  const phase = phaseOf(found, live.now());
  /** @type {(verb: string, says: string[], options?: { danger?: boolean, yes?: string }) => Promise<void>} */
  const does = async (verb, says, { danger = false, yes } = {}) => confirm({
    title: t(`${verb}_title`, { name: found.name }),
    says,
    yes: yes ?? t(verb),
    danger,
    act: async () => {
      const moved = await call("POST", `/activities/${id}/${verb}`);
      again();
      return moved;
    },
  });
  const actions = el("div", { class: "actions" });
  const add = (when, text, act, kind) => { if (may && when) actions.append(button(text, act, { kind, note: told })); };
  const published = found.state === "published";
  const paused = found.state === "paused";
  add(found.state === "draft", t("publish"), () => preflight(found, { live, again }), "primary");
  add((published || paused) && phase !== "over", t("warm"), async () => {
    const { items } = await call("POST", `/activities/${id}/warm`, { withinMs: 120_000 });
    const fresh = items.filter((item) => !item.already).length;
    told.good(t("warmed", { n: number(fresh), known: number(items.length - fresh) }));
  });
  add((found.state === "draft" || published) && live.now() < found.opens_at, t("postpone"), () => postpone(found, again));
  add(published && phase !== "over", t("pause"), () => pauseSale(found, { live, after: again }), "danger");
  add(paused, t("resume"), () => does("resume", [t("resume_says_1"), t("resume_says_2")]), "primary");
  add(!["ended"].includes(found.state) && phase !== "over", t("end"), () => does("end", found.state === "draft" ? [t("end_draft_says")] : [t("end_says_1"), t("end_says_2"), t("end_says_3")], { danger: true }), "");

  const door = [
    found.door.challenge === "off" ? t("challenge_off") : `${named("challenge", found.door.challenge)}${found.door.challenge === "pow" ? ` · ${found.door.difficulty}` : ""}`,
    found.door.members_only ? t("members_only") : null,
    found.door.members_from ? t("members_from", { time: time(found.door.members_from) }) : null,
  ].filter(Boolean).join(" · ");
  const about = card(null, facts([
    [t("opens"), time(found.opens_at)], [t("closes"), time(found.closes_at)], [t("pay_within"), span(found.pay_within_ms)],
    [t("door"), door], found.external_id ? [t("external_id"), found.external_id] : null,
    found.publish_at ? [t("publish_at"), time(found.publish_at)] : null,
    found.draw ? [t("shuffle"), `${number(found.draw.shuffle_ms)} ms`] : null,
    paused && found.resumes_at ? [t("pause_until"), time(found.resumes_at)] : null,
    [t("number"), String(found.id)],
  ]), actions, told.line);

  const items = table([
    [t("item"), (item) => el("span", {}, item.name, item.sku ? el("small", {}, ` ${item.sku}`) : null)],
    [t("price"), (item) => money(item.price, item.currency), "num"],
    [t("units"), (item) => number(item.total), "num"],
    [t("unsold"), (item) => number(item.stock), "num"],
    [t("per_buyer"), (item) => number(item.limit_per_user), "num"],
    [t("shards"), (item) => number(item.shards), "num"],
    ["", (item) => el("span", { class: "actions end" },
      may && found.state !== "draft" && found.state !== "ended" ? button(t("stock_change"), () => changeStock(item, again)) : null,
      link(`/item/${item.id}/stock-log`, t("stock_log"))), "tight"],
  ], found.items, { label: t("items") });

  const came = el("div", {});
  call("GET", `/activities/${id}/totals`).then((totals) => came.replaceChildren(totalsOf(totals)), () => {});
  return {
    place: el("div", { class: "view" },
      el("header", {},
        el("div", { class: "actions" }, el("h1", {}, found.name), pill("state", phase)),
        el("div", { class: "actions" }, found.state === "draft" ? null : link(`/live/${id}`, t("watch_live")), link(`/orders?activity_id=${id}`, t("its_orders")))),
      about, items, came, el("p", { class: "hint" }, t("times_in", { zone: zone() }))),
  };
}

function totalsOf(totals) {
  const sum = (status, of) => totals.items.reduce((all, item) => all + item.orders[status][of], 0);
  const states = ["unpaid", "paid", "closed", "refunding", "refunded", "void"];
  return card(t("came_to"), facts([
    ...states.map((status) => [named("order", status), `${number(sum(status, "orders"))} · ${t("units_n", { n: number(sum(status, "units")) })}`]),
    ...totals.currencies.map((c) => [t("revenue"), money(c.revenue, c.currency)]),
  ]), el("small", {}, t("counted_when", { time: time(totals.counted_at) })));
}

/** Moves the window; the length stays unless the closing is changed as well. */
function postpone(found, again) {
  const opens = el("input", { type: "datetime-local", step: "1", required: true, value: toLocal(found.opens_at) });
  const closes = el("input", { type: "datetime-local", step: "1", required: true, value: toLocal(found.closes_at) });
  opens.addEventListener("change", () => {
    if (opens.value) closes.value = toLocal(fromLocal(opens.value) + found.closes_at - found.opens_at);
  });
  return confirm({
    title: t("postpone_title", { name: found.name }),
    says: [t("postpone_says_1"), t("postpone_says_2")],
    fields: [field(t("opens"), opens, zone()), field(t("closes"), closes)],
    yes: t("postpone"),
    act: async () => {
      await call("PATCH", `/activities/${found.id}`, { body: { version: found.version, opens_at: fromLocal(opens.value), closes_at: fromLocal(closes.value) } });
      again();
    },
  });
}

/** The same number is sent again if the answer was lost, so that nothing is changed twice. */
function changeStock(item, again) {
  const by = el("input", { type: "number", required: true, step: "1", min: String(-item.stock), placeholder: "+10" });
  let adjustNo;
  return confirm({
    title: t("stock_title", { name: item.name }),
    says: [t("stock_says_1"), t("stock_says_2", { n: number(item.stock) }), t("stock_says_3")],
    fields: [field(t("stock_by"), by, t("stock_hint"))],
    yes: t("stock_change"),
    act: async () => {
      try {
        await call("POST", `/items/${item.id}/stock`, { body: { delta: Number(by.value), ...(adjustNo ? { adjust_no: adjustNo } : {}) } });
      } catch (problem) {
        adjustNo = problem.body?.adjust_no ?? adjustNo;
        throw problem;
      }
      again();
    },
  });
}
