// Rehearsing: a crowd of programs against a server of its own, started from here, with what it found. The server
// refuses it near a sale, which needs the processor that a crowd takes.

import { sleep } from "../backoff.js";
import { el, setText } from "../element.js";
import { language } from "../i18n.js";
import { call, download } from "./call.js";
import { button, card, confirm, failed, field, note } from "./parts.js";
import { line } from "./preflight.js";
import { compact, latency, named, number, span, t, time, why } from "./text.js";

const LOOK_EVERY_MS = 1_000;
/** What a page may start; a command line takes more. */
const BUYERS_MAX = 100_000;
const ITEMS_MAX = 20;
const STOCK_MAX = 1_000_000;
const WITHIN_S_MAX = 60;
const SHOWN_MAX = 20;
const VERDICTS = { held: "ok", violated: "bad", not_checked: "warn" };

/** What to type instead, for a sale of this shape. */
export function command({ buyers, items, stock, within }) {
  return `seckill rehearse --buyers ${buyers} --items ${items} --stock ${stock} --over ${within}s --html report.html`;
}

/** The shape of a sale that a crowd is to meet. */
export function shapeOf(sale) {
  if (!sale) return { items: 1, stock: 1_000 };
  const most = Math.max(1, ...sale.items.map((item) => item.total));
  return { items: Math.min(Math.max(1, sale.items.length), ITEMS_MAX), stock: Math.min(most, STOCK_MAX) };
}

/** Who got something, how many a second, and how long a claim took. */
function figures({ funnel, rates, latency: took, plan }) {
  const units = plan.items * plan.stock;
  const figure = (name, value, more) => el("div", { class: "figure" }, el("span", {}, name), el("b", {}, value), el("small", {}, more));
  return el("div", { class: "figures" },
    figure(t("rehearsed_got"), number(funnel.admitted), t("rehearsed_got_more", { came: number(funnel.buyers), units: number(units), paid: number(funnel.paid) })),
    figure(t("rehearsed_rate"), compact(Math.round(rates.accepted.peak_per_s)), t("rehearsed_rate_more", { persisted: compact(Math.round(rates.persisted.peak_per_s)), refused: compact(Math.round(rates.rejected.peak_per_s)) })),
    figure(t("rehearsed_p99"), latency(took.claims.p99_us), t("rehearsed_p99_more", { p50: latency(took.claims.p50_us), max: latency(took.claims.max_us) })));
}

function found(report, told) {
  const checks = report.checks.map(({ invariant, outcome }) => line(VERDICTS[outcome], named("invariant", invariant)));
  const violations = report.violations.slice(0, SHOWN_MAX).map(({ invariant, detail }) => el("li", {}, el("b", {}, named("invariant", invariant)), " ", detail));
  return [
    figures(report),
    violations.length > 0 ? card(t("rehearsed_violations"), el("ul", { class: "alerts" }, violations)) : null,
    card(t("rehearsed_checks"), el("ul", { class: "checks many" }, checks)),
    report.notes.length > 0 ? card(t("rehearsed_notes"), el("ul", { class: "says" }, report.notes.map((text) => el("li", {}, text)))) : null,
    el("div", { class: "actions" }, button(t("rehearsed_save"), () => download("/rehearsals/page", "report.html"), { note: told }), told.line),
  ].filter(Boolean);
}

function verdict(last) {
  const good = last.outcome === "held";
  const count = number(last.report?.violations.length ?? 0);
  return el("div", { class: `verdict ${good ? "good" : "bad"}` },
    el("i", { "aria-hidden": "true" }, good ? "✓" : "✕"),
    el("div", {}, el("h2", {}, t(`outcome_${last.outcome}`, { n: count })),
      el("p", {}, t("rehearsed_when", { time: time(last.ended_at), who: last.who, buyers: number(last.buyers), items: number(last.items), stock: number(last.stock), span: span(last.ended_at - last.started_at) }))));
}

function lastOf(last) {
  if (!last) return [el("p", { class: "empty" }, t("never_rehearsed"))];
  return [verdict(last), ...(last.report ? found(last.report, note()) : []), ...(last.said ? [el("pre", { tabindex: "0" }, last.said)] : [])];
}

export async function rehearse({ live, role }) {
  const [{ activities }, first] = await Promise.all([call("GET", "/activities?limit=50"), call("GET", "/rehearsals")]);
  const ahead = activities.filter((sale) => ["draft", "published"].includes(sale.state) && sale.closes_at > live.now());
  const of = el("select", {}, ahead.map((sale) => el("option", { value: sale.id }, `${sale.name} · ${time(sale.opens_at)}`)));
  const buyers = el("input", { type: "number", min: "1", max: BUYERS_MAX, step: "1", value: "20000", required: true });
  const within = el("input", { type: "number", min: "0", max: WITHIN_S_MAX, step: "1", value: "5", required: true });
  const typed = el("pre", { tabindex: "0" });
  const shape = el("small", {});
  const told = note();
  const start = el("button", { type: "submit", class: "primary" }, t("rehearse"));
  const stop = button(t("rehearse_stop"), () => call("DELETE", "/rehearsals"), { kind: "danger", note: told });
  const doing = el("b", { role: "status" });
  const running = el("div", { class: "light busy" }, el("i", {}), doing, role === "viewer" ? null : stop);
  const results = el("div", { class: "view" });
  const wanted = () => ({ buyers: Number(buyers.value), ...shapeOf(ahead.find((one) => String(one.id) === of.value)) });
  const draw = () => {
    const { items, stock } = wanted();
    typed.textContent = command({ ...wanted(), within: Number(within.value) });
    shape.textContent = t("rehearse_shape", { items: number(items), stock: number(stock) });
  };
  [of, buyers, within].forEach((input) => input.addEventListener("input", draw));
  draw();

  let closed = false;
  let looking = false;
  const show = (seen) => {
    const now = seen.running;
    running.hidden = now === null;
    start.disabled = now !== null;
    if (now) setText(doing, t("rehearse_runs", { buyers: number(now.buyers), span: span(seen.now_ms - now.started_at) }));
    results.hidden = now !== null;
    if (!now) results.replaceChildren(...lastOf(seen.last));
  };
  /** Until it has ended, or somebody goes elsewhere. */
  const follow = async (seen) => {
    show(seen);
    if (looking || seen.running === null) return;
    looking = true;
    for (let now = seen; now.running && !closed;) {
      await sleep(LOOK_EVERY_MS);
      try {
        now = await call("GET", "/rehearsals");
        if (!closed) show(now);
      } catch (problem) {
        told.bad(why(problem));
      }
    }
    looking = false;
  };
  const begin = async () => {
    const body = { ...wanted(), over_ms: Number(within.value) * 1_000, language: language() };
    await follow(await call("POST", "/rehearsals", { body }));
  };
  const form = el("form", { class: "card" },
    el("p", {}, t("rehearse_says")),
    el("div", { class: "columns" }, ahead.length > 0 ? field(t("rehearse_like"), of) : null, field(t("crowd"), buyers), field(t("come_within"), within)), shape,
    role === "viewer" ? null : el("div", { class: "actions" }, start, el("small", {}, t("rehearse_not_near"))), told.line, running);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    told.clear();
    confirm({
      title: t("rehearse_title", { buyers: number(Number(buyers.value)) }),
      says: [t("rehearse_says_1"), t("rehearse_says_2"), t("rehearse_says_3")],
      yes: t("rehearse_start"),
      // Not until it has ended: the dialog would stay that long.
      act: async () => { begin().catch((problem) => told.bad(why(problem))); },
    });
  });
  follow(first).catch((problem) => results.replaceChildren(failed(problem, () => {})));
  return {
    place: el("div", { class: "view" }, el("header", {}, el("h1", {}, t("nav_rehearse"))), form, results,
      el("details", {}, el("summary", {}, t("rehearse_how")), el("div", { class: "view" }, typed, el("p", { class: "hint" }, t("rehearse_report"))))),
    close() { closed = true; },
  };
}
