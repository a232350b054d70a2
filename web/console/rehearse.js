// Rehearsing. It is not run from here, and the page says why: a crowd of twenty thousand beside a sale takes the
// processor that the sale needs, and one press too many at midnight would be the outage that it was to prevent.

import { el } from "../element.js";
import { call } from "./call.js";
import { card, field } from "./parts.js";
import { number, t, time } from "./text.js";

/** What to type, for a sale of this shape. */
export function command({ buyers, items, stock, within }) {
  return `seckill rehearse --buyers ${buyers} --items ${items} --stock ${stock} --over ${within}s --html report.html`;
}

export async function rehearse({ live }) {
  const { activities } = await call("GET", "/activities?limit=50");
  const ahead = activities.filter((sale) => ["draft", "published"].includes(sale.state) && sale.closes_at > live.now());
  const of = el("select", {}, ahead.map((sale) => el("option", { value: sale.id }, `${sale.name} · ${time(sale.opens_at)}`)));
  const buyers = el("input", { type: "number", min: "1", step: "1000", value: "20000" });
  const within = el("input", { type: "number", min: "1", step: "1", value: "5" });
  const line = el("pre", { tabindex: "0" });
  const shape = el("small", {});
  const draw = () => {
    const sale = ahead.find((one) => String(one.id) === of.value);
    const items = sale?.items.length ?? 1;
    const stock = sale ? Math.max(...sale.items.map((item) => item.total)) : 1_000;
    line.textContent = command({ buyers: Number(buyers.value) || 1, items, stock, within: Number(within.value) || 1 });
    shape.textContent = t("rehearse_shape", { items: number(items), stock: number(stock) });
  };
  [of, buyers, within].forEach((input) => input.addEventListener("input", draw));
  draw();
  return {
    place: el("div", { class: "view" }, el("header", {}, el("h1", {}, t("nav_rehearse"))),
      card(t("rehearse_not_here"), el("p", {}, t("rehearse_why"))),
      card(t("rehearse_how"), el("div", { class: "columns" }, ahead.length > 0 ? field(t("sale"), of) : null, field(t("crowd"), buyers), field(t("come_within"), within)), shape, line, el("p", { class: "hint" }, t("rehearse_report")))),
  };
}
