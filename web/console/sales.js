// All sales there are, newest first.

import { el } from "../element.js";
import { call, query } from "./call.js";
import { link, pages, pill, table } from "./parts.js";
import { number, t, time, zone } from "./text.js";

const SALES_OF_A_PAGE = 50;

/** What a sale does now, which its state alone does not say. */
export function phaseOf(sale, now) {
  if (sale.state !== "published") return sale.state;
  return now < sale.opens_at ? "waiting" : now < sale.closes_at ? "open" : "over";
}

export function sales({ live, role }) {
  const read = async (before) => {
    const page = await call("GET", `/activities${query({ before, limit: SALES_OF_A_PAGE })}`);
    return { rows: page.activities, next: page.next };
  };
  const show = (rows) => table([
    [t("name"), (sale) => link(`/sale/${sale.id}`, sale.name)],
    [t("state"), (sale) => pill("state", phaseOf(sale, live.now())), "tight"],
    [t("opens"), (sale) => time(sale.opens_at), "tight"],
    [t("closes"), (sale) => time(sale.closes_at), "tight"],
    [t("items"), (sale) => number(sale.items.length), "num"],
    [t("units"), (sale) => number(sale.items.reduce((sum, item) => sum + item.total, 0)), "num"],
    [t("unsold"), (sale) => number(sale.items.reduce((sum, item) => sum + item.stock, 0)), "num"],
  ], rows, { label: t("nav_sales"), empty: t("no_sales") });
  const list = pages(read, show);
  list.first();
  return {
    place: el("div", { class: "view" },
      el("header", {}, el("h1", {}, t("nav_sales")), role === "viewer" ? null : el("a", { class: "button", href: "#/sales/new" }, t("plan_one"))),
      list.place,
      el("p", { class: "hint" }, t("times_in", { zone: zone() }))),
  };
}
