// Where every unit of an item went: one row for each change, without a gap.

import { el } from "../element.js";
import { call, query } from "./call.js";
import { card, facts, field, link, pages, table } from "./parts.js";
import { named, number, t, time } from "./text.js";

export async function stockLog({ params: [id] }) {
  const { item, gate } = await call("GET", `/items/${id}`);
  const find = el("input", { type: "search", autocomplete: "off", spellcheck: "false" });
  const read = async (after) => {
    const page = await call("GET", `/items/${id}/stock-log${query({ after, limit: 200 })}`);
    return { rows: page.rows, next: page.next };
  };
  const fits = (row) => row.order_no.includes(find.value.trim().toUpperCase());
  let all = [];
  const shown = el("div", { class: "view" });
  const show = () => shown.replaceChildren(table([
    [t("when"), (row) => time(row.created_at), "tight"], [t("what"), (row) => named("stock", row.type), "tight"],
    [t("order"), (row) => (row.type === "adjust" ? el("span", { class: "mono" }, row.order_no) : link(`/order/${row.order_no}`, row.order_no, "mono")), "tight"],
    [t("by"), (row) => number(row.after_stock - row.before_stock), "num"], [t("before"), (row) => number(row.before_stock), "num"], [t("after"), (row) => number(row.after_stock), "num"],
  ], all.filter(fits), { label: t("stock_log") }));
  const list = pages(read, (rows) => {
    all = rows;
    show();
    return shown;
  });
  find.addEventListener("input", show);
  list.first();
  return {
    place: el("div", { class: "view" },
      el("header", {}, el("h1", {}, t("stock_log_of", { name: item.name })), link(`/sale/${item.activity_id}`, t("of_sale", { id: item.activity_id }))),
      card(null, facts([
        [t("ledger_stock"), number(item.stock)], [t("total"), number(item.total)],
        gate ? [t("gate_left"), number(gate.left)] : [t("gate_left"), t("not_at_gate")], gate ? [t("in_flight"), number(gate.in_flight_units)] : null,
      ])), field(t("find_order"), find), list.place),
  };
}
