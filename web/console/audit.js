// The audit: who did what, from where; searched by person, deed and thing.

import { el } from "../element.js";
import { call, query } from "./call.js";
import { field, link, pages, table } from "./parts.js";
import { inWords, t, time, zone } from "./text.js";

/** What an entry is about, as a link where there is a page of it. */
function target(entry) {
  const [kind, id] = entry.target.split(":");
  if (kind === "order") return link(`/order/${id}`, entry.target, "mono");
  if (kind === "activity") return link(`/sale/${id}`, entry.target);
  return entry.target;
}

export function audit({ search }) {
  const input = (name) => el("input", { value: search.get(name) ?? "", autocomplete: "off", spellcheck: "false" });
  const [who, action, about] = ["who", "action", "target"].map(input);
  const read = async (before) => {
    const page = await call("GET", `/audit${query({ who: who.value.trim(), action: action.value.trim(), target: about.value.trim(), before })}`);
    return { rows: page.entries, next: page.next };
  };
  const list = pages(read, (rows) => table([
    [t("when"), (entry) => time(entry.created_at), "tight"],
    [t("who"), (entry) => el("span", {}, entry.who, el("small", {}, ` ${entry.address ?? ""}`))],
    [t("deed"), (entry) => el("code", {}, entry.action), "tight"],
    [t("about"), target, "tight"],
    [t("detail"), (entry) => el("span", { class: "mono" }, inWords(entry.detail))],
  ], rows, { label: t("nav_audit"), empty: t("no_audit") }));
  const form = el("form", { class: "search", role: "search" },
    field(t("who"), who), field(t("deed"), action, "activity. · order.refund"), field(t("about"), about, "activity:7"), el("button", { type: "submit", class: "primary" }, t("search")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    list.first();
  });
  list.first();
  return { place: el("div", { class: "view" }, el("header", {}, el("h1", {}, t("nav_audit"))), form, list.place, el("p", { class: "hint" }, t("times_in", { zone: zone() }))) };
}
