// The pre-flight: everything that should be looked at before a sale is published, and then the button.

import { el } from "../element.js";
import { Problem } from "../problem.js";
import { call } from "./call.js";
import { confirm } from "./parts.js";
import { named, span, t, time } from "./text.js";

const MARKS = { ok: ["✓", "good"], warn: ["!", "warn"], bad: ["✕", "bad"] };
const PICTURE_WITHIN_MS = 5_000;

export function line(verdict, what, detail) {
  const [mark, tone] = MARKS[verdict];
  return el("li", {}, el("span", { class: `mark ${tone}`, "aria-label": named("verdict", verdict), role: "img" }, mark), el("span", {}, what), detail ? el("small", {}, detail) : null);
}

/** Can the picture be shown? Asked of the shop's own server, by the browser, as buyers' browsers will. */
export function shows(url) {
  return new Promise((resolve) => {
    const image = new Image();
    const give = setTimeout(() => resolve(false), PICTURE_WITHIN_MS);
    const end = (good) => () => {
      clearTimeout(give);
      resolve(good);
    };
    image.onload = end(true);
    image.onerror = end(false);
    image.referrerPolicy = "no-referrer";
    image.src = url;
  });
}

async function broken(items) {
  const urls = [...new Set(items.flatMap((item) => item.images))].slice(0, 50);
  const seen = await Promise.all(urls.map(shows));
  return urls.filter((_, i) => !seen[i]);
}

export async function preflight(sale, { live, again }) {
  const [found, bad] = await Promise.all([call("GET", `/activities/${sale.id}/preflight`), broken(sale.items)]);
  const checks = el("ul", { class: "checks" }, found.checks.map((check) => line(check.verdict, t(`check_${check.name}_${check.verdict === "ok" ? "ok" : "not"}`), check.verdict === "ok" && check.name !== "payment" ? null : check.detail)));
  checks.append(bad.length > 0 ? line("warn", t("check_shown_not"), bad.join(" ")) : line("ok", t("check_shown_ok")));
  const rehearsed = el("input", { type: "checkbox" });
  // Where the machine itself knows of a rehearsal, nobody is asked whether there was one.
  const known = found.checks.some(({ name, verdict }) => name === "rehearsed" && verdict === "ok");
  let warned = known;
  const until = sale.opens_at - live.now();
  return confirm({
    title: t("publish_title", { name: sale.name }),
    says: [
      until > 0 ? t("publish_says_wait", { time: time(sale.opens_at), span: span(until) }) : t("publish_says_now"),
      t("publish_says_seen"),
      t("publish_says_fixed"),
    ],
    fields: [checks, known ? null : el("label", { class: "check" }, rehearsed, el("span", {}, t("rehearsed")))],
    yes: t(found.ready ? "publish" : "publish_anyway"),
    danger: !found.ready,
    act: async () => {
      if (!rehearsed.checked && !warned) {
        warned = true;
        throw new Problem({ code: "not_rehearsed", body: { detail: t("not_rehearsed") } });
      }
      await call("POST", `/activities/${sale.id}/publish`);
      again();
    },
  });
}
