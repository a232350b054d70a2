// Orders: found by number, buyer, SKU or payment, all of them page by page, and as a table for a spreadsheet.

import { el } from "../element.js";
import { call, download, query } from "./call.js";
import { button, field, link, note, pages, pill, table } from "./parts.js";
import { money, named, number, t, time, zone } from "./text.js";

const ORDERS_OF_A_PAGE = 50;
const BY = ["order_no", "user_id", "sku", "payment"];
const ORDER_STATES = ["unpaid", "paid", "closed", "refunding", "refunded", "void"];
const NUMBER = /^[A-Z]{2}\d{10,}$/;

export const orderTable = (rows) => table([
  [t("order"), (order) => link(`/order/${order.order_no}`, order.order_no, "mono"), "tight"],
  [t("state"), (order) => pill("order", order.failed ?? order.status), "tight"],
  [t("buyer"), (order) => order.user_id ?? "–"],
  [t("item"), (order) => `${order.item_name}${order.quantity > 1 ? ` × ${number(order.quantity)}` : ""}`],
  [t("amount"), (order) => money(order.amount, order.currency), "num"],
  [t("made"), (order) => time(order.created_at), "tight"],
  [t("paid_at"), (order) => time(order.paid_at), "tight"],
], rows, { label: t("nav_orders"), empty: t("no_orders") });

export function orders({ search: given }) {
  const told = note();
  const by = el("select", {}, BY.map((name) => el("option", { value: name }, t(`by_${name}`))));
  const text = el("input", { type: "search", autocomplete: "off", spellcheck: "false" });
  const state = el("select", {}, el("option", { value: "" }, t("any")), ORDER_STATES.map((name) => el("option", { value: name }, named("order", name))));
  const activity = given.get("activity_id");
  const named_ = BY.find((name) => given.get(name));
  if (named_) {
    by.value = named_;
    text.value = given.get(named_);
  }
  state.value = given.get("status") ?? "";
  // Whoever pastes a number means that order.
  text.addEventListener("input", () => { if (NUMBER.test(text.value.trim())) by.value = "order_no"; });
  const asked = () => {
    const word = text.value.trim();
    const alone = word !== "" && ["order_no", "payment"].includes(by.value);
    return { ...(word ? { [by.value]: word } : {}), ...(alone ? {} : { status: state.value, activity_id: activity }) };
  };
  const read = async (before) => {
    const page = await call("GET", `/orders${query({ ...asked(), before, limit: "order_no" in asked() || "payment" in asked() ? undefined : ORDERS_OF_A_PAGE })}`);
    return { rows: page.orders, next: page.next };
  };
  const list = pages(read, orderTable);
  const form = el("form", { class: "search", role: "search" },
    field(t("search_by"), by), field(t("search_for"), text), field(t("state"), state),
    el("button", { type: "submit", class: "primary" }, t("search")),
    button("CSV", () => {
      // One payment is no table: the other conditions stand.
      /** @type {Record<string, any>} */
      const conditions = asked();
      const { payment, ...rest } = conditions;
      return download(`/orders${query({ ...(payment ? { status: state.value, activity_id: activity } : rest), format: "csv" })}`, "orders.csv");
    }, { note: told, title: t("csv_says") }));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    list.first();
  });
  list.first();
  return {
    place: el("div", { class: "view" },
      el("header", {}, el("h1", {}, t("nav_orders")), activity ? el("span", { class: "actions" }, link(`/sale/${activity}`, t("of_sale", { id: activity })), link("/orders", t("all_orders"))) : null),
      form, told.line, list.place, el("p", { class: "hint" }, `${t("audited")} ${t("times_in", { zone: zone() })}`)),
  };
}
