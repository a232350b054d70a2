// Webhooks: where the shop's backend is told of events, what was delivered, and sending it again.

import { el } from "../element.js";
import { call, query } from "./call.js";
import { button, card, confirm, facts, field, link, note, pages, pill, table } from "./parts.js";
import { named, number, t, time } from "./text.js";

const DELIVERY_STATES = ["failed", "pending", "delivered"];

function endpoint(hook, role, again) {
  const told = note();
  const state = el("select", {}, el("option", { value: "" }, t("any")), DELIVERY_STATES.map((name) => el("option", { value: name }, named("delivery", name))));
  const read = async (before) => {
    const page = await call("GET", `/webhooks/${hook.id}/deliveries${query({ state: state.value, before })}`);
    return { rows: page.deliveries, next: page.next };
  };
  const show = (rows) => table([
    [t("event"), (one) => el("span", {}, one.type, el("small", {}, one.body?.data?.order_no ? link(`/order/${one.body.data.order_no}`, ` ${one.body.data.order_no}`, "mono") : ""))],
    [t("state"), (one) => pill("delivery", one.state), "tight"],
    [t("tries"), (one) => number(one.tries), "num"],
    [t("answer"), (one) => `${one.status ?? "–"}${one.cause ? ` · ${one.cause}` : ""}`],
    [t("happened"), (one) => time(one.created_at), "tight"],
    [t("done"), (one) => time(one.done_at), "tight"],
    ["", (one) => (role === "viewer" || one.state === "pending" ? null : button(t("replay"), async () => {
      await call("POST", `/webhooks/${hook.id}/deliveries/${one.id}/replay`);
      told.good(t("sent_again"));
      await list.first();
    }, { note: told })), "tight"],
  ], rows, { label: t("deliveries"), empty: t("no_deliveries") });
  const list = pages(read, show);
  state.addEventListener("change", () => list.first());
  list.first();
  const all = button(t("replay_failed"), () => confirm({
    title: t("replay_failed_title", { url: hook.url }), says: [t("replay_failed_says_1", { n: number(hook.failed) }), t("replay_failed_says_2")], yes: t("replay_failed"),
    act: async () => {
      const { replayed } = await call("POST", `/webhooks/${hook.id}/replay`, { body: {} });
      told.good(t("replayed_n", { n: number(replayed) }));
      again();
    },
  }), { note: told });
  const test = button(t("test_hook"), async () => {
    const answer = await call("POST", `/webhooks/${hook.id}/test`);
    (answer.taken ? told.good : told.bad)(answer.taken ? t("test_taken", { status: answer.status }) : t("test_not_taken", { why: answer.cause ?? answer.status ?? "" }));
  }, { note: told });
  return card(null,
    el("div", { class: "actions" }, el("h2", {}, hook.url), pill("hook", hook.enabled ? "ok" : "bad")),
    facts([
      [t("events"), hook.events.join(", ")], [t("pending"), number(hook.pending)], [t("failed_n"), number(hook.failed)],
      hook.oldest_pending_at ? [t("oldest"), time(hook.oldest_pending_at)] : null, hook.failing_since ? [t("failing_since"), time(hook.failing_since)] : null,
      hook.reason ? [t("reason"), hook.reason] : null,
    ]),
    el("div", { class: "actions" }, field(t("state"), state), role === "viewer" ? null : test, role !== "viewer" && hook.failed > 0 ? all : null),
    told.line, list.place);
}

export async function webhooks({ role, again }) {
  const { webhooks: hooks } = await call("GET", "/webhooks");
  return {
    place: el("div", { class: "view" }, el("header", {}, el("h1", {}, t("nav_webhooks"))),
      ...(hooks.length === 0 ? [el("p", { class: "empty" }, t("no_hooks"), " ", el("code", {}, "seckill webhooks add URL"))] : hooks.map((hook) => endpoint(hook, role, again)))),
  };
}
