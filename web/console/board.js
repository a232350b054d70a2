// The live board of one sale: how it goes, second by second, and the big button that pauses it.

import { el, setAttribute, setText } from "../element.js";
import { call } from "./call.js";
import { chart } from "./charts.js";
import { todoOf } from "./words_alerts.js";
import { funnelOf, rate, reasonsOf, saleToWatch } from "./live.js";
import { confirm, link, pill } from "./parts.js";
import { pauseSale } from "./pausing.js";
import { clock, compact, latency, money, named, number, span, t, time } from "./text.js";

/** What is counted in the ledger is asked for at a quiet pace; all who ask share one count. */
const TOTALS_EVERY_MS = 5_000;
const REASONS_MAX = 8;

function tile(key) {
  const value = el("b", {}, "–");
  const more = el("small", {}, "");
  const box = el("div", { class: "tile" }, el("span", {}, t(key)), value, more);
  return { box, value, more };
}

const TILES = ["claims_per_s", "refused_per_s", "gate_p50", "gate_p99", "backlog", "unpaid", "paid", "closed", "revenue", "dead_letters"];

export function board({ live, role, params }) {
  let chosen = params[0] ? Number(params[0]) : null;
  let totals = null;
  const tiles = Object.fromEntries(TILES.map((key) => [key, tile(key)]));
  const name = el("h1", { id: "board-title" }, "–");
  const state = el("span", {});
  const countdown = el("b", { class: "countdown", role: "timer" }, "");
  const when = el("small", {}, "");
  const pick = el("select", { "aria-label": t("sale") });
  const pause = el("button", { type: "button", class: "pause" }, t("pause"));
  const left = el("b", {}, "–");
  const leftMore = el("small", {}, "");
  const bar = el("progress", { max: "1", value: "0", "aria-label": t("units_left") });
  const funnel = el("ol", { class: "funnel" });
  const reasons = el("ul", { class: "reasons" });
  const health = el("ul", { class: "health" });
  const alerts = el("ul", { class: "alerts" });
  const whose = el("p", { class: "whose" }, "");
  const items = el("ul", { class: "units" });
  const charts = {
    claims: chart(t("chart_claims"), [[t("admitted"), "good", { filled: true }], [t("refused"), "bad"]]),
    gate: chart(t("chart_gate"), [["p50", "blue", { sparse: true }], ["p99", "warn", { sparse: true }]], { format: latency }),
    left: chart(t("chart_left"), [[t("units_left"), "blue", { filled: true }]], { format: number }),
    log: chart(t("chart_log"), [[t("backlog"), "warn", { filled: true }], [t("settled_per_s"), "good"]]),
  };
  const quiet = el("p", { class: "empty" }, t("loading"));
  const body = el("div", { hidden: true },
    el("div", { class: "tiles" },
      el("div", { class: "tile wide" }, el("span", {}, t("units_left")), left, bar, leftMore, items),
      Object.values(tiles).map(({ box }) => box)),
    el("div", { class: "charts" }, Object.values(charts).map(({ figure }) => figure)),
    el("div", { class: "halves" },
      el("section", { class: "card" }, el("h2", {}, t("funnel")), el("p", { class: "hint" }, t("funnel_hint")), funnel),
      el("section", { class: "card" }, el("h2", {}, t("reasons")), reasons)),
    el("div", { class: "halves" },
      el("section", { class: "card" }, el("h2", {}, t("health")), health),
      el("section", { class: "card" }, el("h2", {}, t("alerts")), alerts)),
    whose);
  const place = el("div", { class: "board" },
    el("header", { class: "head" },
      el("div", { class: "what" }, name, state),
      el("div", { class: "clock" }, countdown, when),
      el("div", { class: "do" }, pick, pause)),
    quiet, body);

  const sale = () => {
    const all = live.state?.items ?? [];
    const id = all.some((item) => item.activity === chosen) ? chosen : saleToWatch(all, live.now());
    const own = all.filter((item) => item.activity === id);
    return own.length > 0 ? { ...own[0], id, items: own } : null;
  };

  const ask = async () => {
    const now = sale();
    if (!now) return;
    try {
      totals = await call("GET", `/activities/${now.id}/totals`);
    } catch {
      totals = totals?.activity_id === now.id ? { ...totals, old: true } : null;
    }
  };

  pause.addEventListener("click", async () => {
    const now = sale();
    if (!now) return;
    const after = (moved) => {
      for (const item of live.state?.items ?? []) {
        if (item.activity === now.id) Object.assign(item, { activity_state: moved.state, resumes_at: moved.resumes_at });
      }
      draw();
    };
    if (now.activity_state !== "paused") return pauseSale({ id: now.id, name: now.activity_name, closes_at: now.closes_at }, { live, after });
    return confirm({
      title: t("resume_title", { name: now.activity_name }),
      says: [t("resume_says_1"), t("resume_says_2")],
      yes: t("resume"),
      act: async () => after(await call("POST", `/activities/${now.id}/resume`)),
    });
  });
  pick.addEventListener("change", () => {
    chosen = Number(pick.value);
    totals = null;
    ask().then(draw);
    draw();
  });

  function drawHead(now) {
    setText(name, now.activity_name);
    name.title = now.activity_name;
    const at = live.now();
    const shown = now.activity_state === "published" ? (at < now.opens_at ? "waiting" : at < now.closes_at ? "open" : "over") : now.activity_state;
    if (state.dataset.shown !== shown) {
      state.dataset.shown = shown;
      state.replaceChildren(pill("state", shown));
    }
    const to = at < now.opens_at ? now.opens_at : now.closes_at;
    setText(countdown, shown === "over" || shown === "ended" ? "" : span(to - at));
    const paused = now.activity_state === "paused";
    const goesOn = paused && now.resumes_at > at ? ` · ${t("goes_on_at", { time: clock(now.resumes_at) })}` : "";
    setText(when, t(shown === "over" || shown === "ended" ? "closed_at" : at < now.opens_at ? "opens_in" : "closes_in", { time: time(to) }) + goesOn);
    setText(pause, t(paused ? "resume" : "pause"));
    setAttribute(pause, "data-paused", paused);
    pause.hidden = role === "viewer" || !["published", "paused"].includes(now.activity_state) || at >= now.closes_at;
    const sales = new Map((live.state?.items ?? []).map((item) => [item.activity, item.activity_name]));
    const known = [...sales].map(([id, text]) => `${id}:${text}`).join("|");
    if (pick.dataset.known !== known) {
      pick.dataset.known = known;
      pick.replaceChildren(...[...sales].map(([id, text]) => el("option", { value: id }, text)));
    }
    pick.value = String(now.id);
    pick.hidden = sales.size < 2;
  }

  function drawTiles(now) {
    const put = (key, value, more = "", tone = "") => {
      setText(tiles[key].value, value);
      setText(tiles[key].more, more);
      setAttribute(tiles[key].box, "data-tone", tone || null);
      setAttribute(tiles[key].box, "data-long", value.length > 9);
    };
    const { samples } = live;
    const last = samples.at(-1);
    put("claims_per_s", compact(Math.round(rate(samples, (s) => s.asked))), t("admitted_rate", { n: compact(Math.round(rate(samples, (s) => s.admitted))) }));
    put("refused_per_s", compact(Math.round(rate(samples, (s) => s.asked - s.admitted))), reasonsOf(samples.slice(-5))[0] ? named("code", reasonsOf(samples.slice(-5))[0][0]) : "");
    const answered = samples.findLast((sample) => sample.p50 !== null);
    const stale = answered && last && last.t - answered.t > 5_000 ? t("last_at", { span: span(last.t - answered.t) }) : "";
    put("gate_p50", latency(answered?.p50), stale);
    put("gate_p99", latency(answered?.p99), stale, answered?.p99 > 500_000 ? "bad" : answered?.p99 > 100_000 ? "warn" : "");
    put("backlog", number(last?.backlog), last?.backlog > 0 && last.pace > 0 ? t("drains_in", { span: span((last.backlog / last.pace) * 1_000) }) : last?.backlog > 0 ? "" : t("log_empty"), last?.backlog > 10_000 ? "warn" : "");
    const dead = live.state?.dead_letters;
    put("dead_letters", number(dead), live.state?.retrying ? t("retrying_n", { n: number(live.state.retrying) }) : "", dead > 0 ? "bad" : "");
    const sum = (status, of) => totals?.items.reduce((all, item) => all + item.orders[status][of], 0);
    const known = totals?.activity_id === now.id;
    for (const status of ["unpaid", "paid", "closed"]) put(status, known ? number(sum(status, "orders")) : "–", known ? t("units_n", { n: number(sum(status, "units")) }) : "");
    const revenue = known ? totals.currencies : [];
    put("revenue", revenue.map((c) => money(c.revenue, c.currency)).join(" + ") || "–", known ? t("counted_at", { span: span(live.now() - totals.counted_at) }) : "");
    const total = now.items.reduce((all, item) => all + item.total, 0);
    const atGate = now.items.every((item) => item.left !== null);
    const unsold = now.items.reduce((all, item) => all + (last?.left[item.id] ?? item.left ?? item.stock), 0);
    setText(left, number(unsold));
    setText(leftMore, `${t("of_total", { total: number(total) })}${atGate ? "" : ` · ${t("not_at_gate")}`}`);
    setAttribute(bar, "value", total > 0 ? unsold / total : 0);
    const rows = now.items.length > 1 ? now.items.slice(0, 6) : [];
    while (items.children.length > rows.length) items.lastChild.remove();
    rows.forEach((item, i) => {
      if (!items.children[i]) items.append(el("li", {}, el("span", {}), el("b", {})));
      setText(items.children[i].firstChild, item.name);
      setText(items.children[i].lastChild, number(last?.left[item.id] ?? item.left));
    });
  }

  function drawCharts(now) {
    const { samples } = live;
    const x = samples.map((s) => s.t / 1_000);
    const per = (s, n) => (s.ms > 0 ? (n * 1_000) / s.ms : 0);
    charts.claims.show([x, samples.map((s) => per(s, s.admitted)), samples.map((s) => per(s, s.asked - s.admitted))]);
    charts.gate.show([x, samples.map((s) => s.p50), samples.map((s) => s.p99)]);
    const ids = now.items.map((item) => item.id);
    charts.left.show([x, samples.map((s) => (ids.some((id) => id in s.left) ? ids.reduce((sum, id) => sum + (s.left[id] ?? 0), 0) : null))]);
    charts.log.show([x, samples.map((s) => s.backlog), samples.map((s) => per(s, s.settled))]);
  }

  function drawFunnel() {
    const { asked, admitted, layers } = funnelOf(live.samples);
    const row = (key, came, stopped, codes) => {
      const share = asked > 0 ? came / asked : 0;
      const line = el("li", {},
        el("div", { class: "layer" }, el("span", {}, t(`layer_${key}`)), el("b", {}, number(came))),
        el("div", { class: "track" }, el("i", { class: key === "orders" ? "end" : "" })),
        el("small", {}, stopped > 0 ? t("stopped", { n: number(stopped), why: Object.keys(codes).map((code) => named("code", code)).join(t("comma")) }) : " "));
      line.querySelector("i").style.width = `${Math.max(came > 0 ? 0.6 : 0, share * 100)}%`;
      return line;
    };
    funnel.replaceChildren(...layers.map((l) => row(l.name, l.came, l.stopped, l.codes)), row("orders", admitted, 0, {}));
    const found = reasonsOf(live.samples).slice(0, REASONS_MAX);
    const most = found[0]?.[1] ?? 1;
    reasons.replaceChildren(...found.map(([code, n]) => {
      const line = el("li", {}, el("span", {}, named("code", code)), el("div", { class: "track" }, el("i", {})), el("b", {}, number(n)));
      line.querySelector("i").style.width = `${(n / most) * 100}%`;
      return line;
    }), ...(found.length === 0 ? [el("li", { class: "none" }, t("no_refusals"))] : []));
  }

  function drawHealth() {
    const { health: seen, alerts: open, outbox, streams } = live.state;
    const ables = ["sell", "settle", "show"].map((what) => [t(`able_${what}`), seen[what], null]);
    const parts = seen.parts.map((part) => [named("part", part.name), part.status, part.cause]);
    // What others owe us an answer for: money on its way back, and events the shop has not taken.
    const failing = open.find(({ kind }) => kind === "webhook_failing");
    const owed = (kind) => ((outbox[kind] ?? 0) > 0 ? "pending" : "ok");
    parts.push([t("part_providers"), owed("refund"), null], [t("part_webhooks"), failing ? "failing" : owed("webhook"), failing?.about ?? null]);
    health.replaceChildren(...[...ables, ...parts].map(([what, status, cause]) => el("li", {},
      el("span", {}, what), pill("status", status), cause ? el("small", {}, cause) : null)),
    ...Object.entries(outbox).map(([kind, rows]) => el("li", {}, el("span", {}, named("outbox", kind)), el("b", {}, number(rows)))),
    el("li", {}, el("span", {}, t("streams")), el("b", {}, number(streams))));
    alerts.replaceChildren(...(open.length === 0 ? [el("li", { class: "none" }, t("no_alerts"))] : open.map((alert) => el("li", {},
      el("b", {}, named("alert", alert.kind)), el("small", {}, [alert.about, time(alert.since)].filter(Boolean).join(" · ")), el("p", {}, todoOf(alert))))));
    setText(whose, t(live.state.profile === "cluster" ? "whose_cluster" : "whose_solo", { instance: seen.instance }));
  }

  let drawnFor = null;
  function draw() {
    const now = sale();
    place.classList.toggle("cut", !live.connected);
    if (!live.state) return;
    quiet.hidden = now !== null;
    body.hidden = now === null;
    if (!now) {
      setText(name, t("live"));
      pause.hidden = true;
      pick.hidden = true;
      quiet.replaceChildren(t("no_sale"), " ", role === "viewer" ? "" : link("/sales/new", t("plan_one")));
      return;
    }
    if (drawnFor !== now.id) {
      drawnFor = now.id;
      ask().then(draw);
    }
    drawHead(now);
    drawTiles(now);
    drawCharts(now);
    drawFunnel();
    drawHealth();
  }

  live.addEventListener("told", draw);
  const asking = setInterval(ask, TOTALS_EVERY_MS);
  const ticking = setInterval(() => { const now = sale(); if (now) drawHead(now); }, 250);
  if (live.state) draw();
  return {
    place,
    close() {
      live.removeEventListener("told", draw);
      clearInterval(asking);
      clearInterval(ticking);
      Object.values(charts).forEach((one) => one.close());
    },
  };
}

