// Dead letters: claims that failed all their tries and wait for a person, and those still being tried.

import { el } from "../element.js";
import { call, query } from "./call.js";
import { button, confirm, field, link, note, pages, pill, table } from "./parts.js";
import { named, number, t, time } from "./text.js";

const LETTER_STATES = ["dead", "retrying", "settled", "voided"];

export function letters({ role, search }) {
  const told = note();
  const state = el("select", {}, el("option", { value: "" }, t("letters_open")), LETTER_STATES.map((name) => el("option", { value: name }, named("letter", name))));
  const only = search.get("order_no");
  const read = async (before) => {
    const page = await call("GET", `/dead-letters${query(only ? { order_no: only } : { state: state.value, before })}`);
    return { rows: page.dead_letters, next: page.next };
  };
  const replay = async (letter) => {
    const now = await call("POST", `/dead-letters/${letter.order_no}/replay`);
    told.good(t("replayed", { no: letter.order_no, state: named("letter", now.state) }));
    await list.first();
    setTimeout(() => list.first(), 1_500);
  };
  const giveUp = (letter) => confirm({
    title: t("void_title", { no: letter.order_no }), says: [t("void_says_1"), t("void_says_2", { n: number(letter.quantity) })], yes: t("void_letter"), danger: true,
    act: async () => {
      await call("POST", `/dead-letters/${letter.order_no}/void`);
      told.good(t("voided", { no: letter.order_no }));
      await list.first();
    },
  });
  const show = (rows) => table([
    [t("order"), (letter) => link(`/order/${letter.order_no}`, letter.order_no, "mono"), "tight"],
    [t("state"), (letter) => pill("letter", letter.state), "tight"],
    [t("cause"), (letter) => letter.cause],
    [t("buyer"), (letter) => letter.user_id],
    [t("units"), (letter) => number(letter.quantity), "num"],
    [t("tries"), (letter) => number(letter.tries), "num"],
    [t("since"), (letter) => time(letter.created_at), "tight"],
    [t("next_try"), (letter) => time(letter.next_try_at), "tight"],
    ["", (letter) => (role === "viewer" || !["dead", "retrying"].includes(letter.state) ? null : el("span", { class: "actions end" },
      button(t("replay"), () => replay(letter), { note: told, kind: "primary" }), button(t("void_letter"), () => giveUp(letter), { note: told }))), "tight"],
  ], rows, { label: t("nav_letters"), empty: t("no_letters") });
  const list = pages(read, show);
  state.addEventListener("change", () => list.first());
  list.first();
  return {
    place: el("div", { class: "view" },
      el("header", {}, el("h1", {}, t("nav_letters")), only ? link("/dead-letters", t("all_letters")) : field(t("state"), state)),
      el("p", { class: "hint" }, t("letters_hint")), told.line, list.place),
  };
}
