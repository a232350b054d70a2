// What several views are made of: tables, pills, notes, buttons that ask first.

import { el } from "../element.js";
import { named, t, why } from "./text.js";

/** A state as a small coloured word. */
const TONES = {
  published: "good", open: "good", paid: "good", ok: "good", delivered: "good", settled: "good", agree: "good", admin: "plain",
  paused: "warn", unpaid: "warn", retrying: "warn", pending: "warn", partly: "warn", stale: "warn", queued: "warn", refunding: "warn", warn: "warn", moving: "warn",
  dead: "bad", failed: "bad", down: "bad", stuck: "bad", panicking: "bad", differ: "bad", failing: "bad", bad: "bad", void: "bad",
};
export const pill = (group, word) => el("span", { class: `pill ${TONES[word] ?? "plain"}` }, named(group, word));

/**
 * `columns` are [heading, cell(row), class?].
 * @param {any[]} columns
 * @param {any[]} rows
 * @param {{ empty?: string, label?: string }} [options]
 */
export function table(columns, rows, { empty = t("nothing"), label } = {}) {
  if (rows.length === 0) return el("p", { class: "empty" }, empty);
  const head = el("tr", {}, columns.map(([heading, , kind]) => el("th", { scope: "col", class: kind }, heading)));
  const body = rows.map((row) => el("tr", {}, columns.map(([heading, cell, kind]) => el("td", { class: kind, "data-label": heading }, cell(row)))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label ?? columns[0][0] }, el("table", {}, el("thead", {}, head), el("tbody", {}, body)));
}

export const facts = (pairs) => el("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));

export const card = (title, ...children) => el("section", { class: "card" }, title ? el("h2", {}, title) : null, ...children);

export const link = (to, text, kind) => el("a", { href: `#${to}`, class: kind }, text);

/** A line that says what came of something; screen readers hear it. */
export function note() {
  const line = el("p", { class: "note", role: "status" });
  const show = (kind) => (text) => {
    line.className = `note ${kind}`;
    line.textContent = text;
  };
  return { line, good: show("good"), bad: show("bad"), clear: () => show("")("") };
}

/**
 * A button that is pressed once at a time and says what went wrong.
 * @param {string} text
 * @param {() => any} act
 * @param {{ kind?: string, note?: ReturnType<typeof note>, title?: string }} [options]
 */
export function button(text, act, { kind = "", note: told, title } = {}) {
  const made = el("button", { type: "button", class: kind, title }, text);
  made.addEventListener("click", async () => {
    if (made.disabled) return;
    made.disabled = true;
    told?.clear();
    try {
      await act();
    } catch (problem) {
      if (told) told.bad(why(problem));
      else throw problem;
    } finally {
      made.disabled = false;
    }
  });
  return made;
}

/** Something that failed to load, and a way to try again. */
export function failed(problem, again) {
  return el("div", { class: "empty bad", role: "alert" }, el("p", {}, why(problem)), button(t("again"), again));
}

/**
 * Asks before something is done, and says what will happen. `fields` are elements that are shown between.
 * Resolves when it was done or put aside; what goes wrong is said in the dialog, which stays.
 */
export function confirm({ title, says, yes, act, fields = [], danger = false }) {
  const told = note();
  const dialog = el("dialog", { "aria-labelledby": "confirm-title" });
  const form = el("form", { method: "dialog" },
    el("h2", { id: "confirm-title" }, title),
    el("ul", { class: "says" }, says.filter(Boolean).map((line) => el("li", {}, line))),
    fields.filter(Boolean), told.line,
    el("div", { class: "actions" },
      el("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, t("not_now")),
      el("button", { type: "submit", class: danger ? "danger" : "primary" }, yes)));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const sure = form.querySelector("[type=submit]");
    sure.disabled = true;
    told.clear();
    try {
      await act();
      dialog.close();
    } catch (problem) {
      told.bad(why(problem));
    } finally {
      sure.disabled = false;
    }
  });
  dialog.append(form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    dialog.remove();
    resolve();
  }));
}

export const field = (text, input, hint) => el("label", { class: "field" }, el("span", {}, text), input, hint ? el("small", {}, hint) : null);

/** Rows that come page by page. `read(before)` gives {rows, next}; `show(rows)` an element. */
export function pages(read, show) {
  const all = [];
  const place = el("div", { class: "pages" });
  const more = async (before) => {
    const { rows, next } = await read(before);
    all.push(...rows);
    const older = next === null || next === undefined ? null : button(t("older"), () => more(next));
    place.replaceChildren(show(all), ...(older ? [older] : []));
  };
  const first = async () => {
    all.length = 0;
    try {
      await more(undefined);
    } catch (problem) {
      place.replaceChildren(failed(problem, first));
    }
  };
  return { place, first };
}
