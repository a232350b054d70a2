// Reconcile: does everything agree? A light, a run with its progress, and what was found and healed.

import { el, setText } from "../element.js";
import { Problem } from "../problem.js";
import { call } from "./call.js";
import { button, card, facts, note, pill, table } from "./parts.js";
import { number, span, t, time } from "./text.js";

const COMPARING_LOOK_MS = 1_000;

function findings(report) {
  const rows = [
    ...report.items.flatMap((item) => item.findings.map((finding) => ({ what: item.name, ...finding }))),
    ...report.payments.map((finding) => ({ what: t("payments"), ...finding })),
  ];
  return rows.length === 0 ? null : table([
    [t("where"), (row) => row.what], [t("what_differs"), (row) => el("span", {}, el("b", {}, row.kind), " ", row.detail)], [t("healed"), (row) => row.healed ?? pill("verdict", "bad")],
  ], rows, { label: t("findings") });
}

function reportOf(report) {
  const items = table([
    [t("item"), (item) => item.name], [t("verdict"), (item) => pill("verdict", item.verdict), "tight"],
    [t("gate_left"), (item) => number(item.gate_left), "num"], [t("in_flight"), (item) => number(item.in_flight), "num"], [t("returning"), (item) => number(item.returning), "num"], [t("adjusting"), (item) => number(item.adjusting ?? 0), "num"],
    [t("ledger_stock"), (item) => number(item.ledger_stock), "num"], [t("live_orders"), (item) => number(item.live_orders), "num"], [t("total"), (item) => number(item.total), "num"],
  ], report.items, { label: t("items"), empty: t(report.compared > 0 ? "nothing_changed" : "no_items_compared") });
  return [findings(report), items].filter(Boolean);
}

const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

/** The report of a run, whether it came at once or has to be followed. */
async function ended(answer, progress) {
  while (answer.state === "running") {
    progress(answer.compared);
    await pause(COMPARING_LOOK_MS);
    answer = await call("GET", `/reconcile/runs/${answer.run}`);
  }
  if (answer.state === "failed") throw new Problem({ code: "failed", body: { detail: answer.cause } });
  return answer.report ?? answer;
}

export async function reconcile({ role }) {
  const { runs } = await call("GET", "/reconcile?limit=20");
  const told = note();
  const last = runs[0];
  const light = el("div", { class: `light ${last ? (last.ok ? "good" : "bad") : ""}` }, el("i", {}), el("b", { role: "status" }, last ? t(last.ok ? "all_agree" : "differs_left", { n: number(last.report.left ?? 0) }) : t("never_run")));
  const words = light.querySelector("b");
  const place = el("div", { class: "view" });
  const run = (heal) => async () => {
    light.className = "light busy";
    const began = Date.now();
    let compared = 0;
    const show = () => setText(words, t("running", { span: span(Date.now() - began), compared: number(compared) }));
    const ticking = setInterval(show, 500);
    show();
    try {
      const report = await ended(await call("POST", `/reconcile${heal ? "?heal=true" : ""}`), (count) => { compared = count; });
      light.className = `light ${report.left === 0 ? "good" : "bad"}`;
      setText(words, t(report.left === 0 ? "all_agree" : "differs_left", { n: number(report.left) }));
      told.good(t("run_done", { compared: number(report.compared), differences: number(report.differences), healed: number(report.healed), span: span(Date.now() - began) }));
      place.replaceChildren(...reportOf(report));
    } catch (problem) {
      light.className = "light bad";
      setText(words, t("run_failed"));
      throw problem;
    } finally {
      clearInterval(ticking);
    }
  };
  if (last) place.replaceChildren(...reportOf(last.report));
  return {
    place: el("div", { class: "view" },
      el("header", {}, el("h1", {}, t("nav_reconcile")), role === "viewer" ? null : el("div", { class: "actions" },
        button(t("compare"), run(false), { note: told, kind: "primary" }), button(t("compare_heal"), run(true), { note: told }))),
      card(null, light, last ? facts([[t("last_run"), time(last.ended_at)], [t("took"), `${number(last.ended_at - last.started_at)} ms`], [t("backlog"), number(last.report.backlog)], [t("dead_letters"), number(last.report.dead_letters)]]) : null, told.line, el("p", { class: "hint" }, t("reconcile_hint"))),
      place,
      card(t("earlier_runs"), table([
        [t("when"), (one) => time(one.ended_at), "tight"], [t("verdict"), (one) => pill("verdict", one.ok ? "agree" : "differ"), "tight"],
        [t("compared"), (one) => number(one.report.compared), "num"], [t("unchanged"), (one) => number(one.report.unchanged ?? 0), "num"], [t("differences"), (one) => number(one.report.differences), "num"], [t("healed"), (one) => number(one.report.healed), "num"], [t("left_over"), (one) => number(one.report.left), "num"],
      ], runs, { label: t("earlier_runs"), empty: t("never_run") }))),
  };
}
