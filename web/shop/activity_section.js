// One activity: its name, its countdown, its items.

import { split, twoDigits } from "../countdown.js";
import { el, setAttribute, setChildren, setText } from "../element.js";
import { dateTime, say } from "../i18n.js";
import { phase } from "./phase.js";
import { words } from "./words.js";

const UNITS = ["days", "hours", "minutes", "seconds"];

export class ActivitySection {
  #parts;

  constructor(id) {
    const digits = Object.fromEntries(UNITS.map((unit) => [unit, { number: el("b"), label: el("small") }]));
    this.#parts = {
      name: el("h2", { id: `activity-${id}` }),
      opens: el("time"),
      closes: el("time"),
      label: el("span", { class: "phase" }),
      days: el("span", { class: "unit" }, digits.days.number, digits.days.label),
      clock: null,
      digits,
      items: el("div", { class: "items" }),
    };
    const p = this.#parts;
    p.clock = el("span", { class: "digits" }, p.days,
      UNITS.slice(1).map((unit) => el("span", { class: "unit" }, digits[unit].number, digits[unit].label)));
    this.node = el("section", { class: "activity", "data-activity": id, "aria-labelledby": `activity-${id}` },
      el("header", {},
        el("div", {}, p.name, el("p", { class: "when" }, p.opens, " – ", p.closes)),
        el("div", { class: "countdown", role: "timer" }, p.label, p.clock)),
      p.items);
  }

  update({ activity, now, synced, cards }) {
    const p = this.#parts;
    const stage = synced ? phase(activity, now) : "soon";
    setAttribute(this.node, "data-phase", stage);
    setText(p.name, activity.name);
    const { opens_at: opens, closes_at: closes } = activity;
    // The end needs its date only if that is another day than the beginning's.
    for (const [node, at, seenFrom] of [[p.opens, opens, now], [p.closes, closes, opens]]) {
      setAttribute(node, "datetime", new Date(at).toISOString());
      setText(node, dateTime(at, seenFrom));
    }
    const paused = activity.state === "paused" && stage === "open";
    setText(p.label, say(words, paused ? "paused" : { soon: "opensIn", open: "endsIn", ended: "over" }[stage]));
    p.clock.hidden = stage === "ended" || !synced;
    const left = split((stage === "soon" ? activity.opens_at : activity.closes_at) - now);
    p.days.hidden = left.days === 0;
    for (const unit of UNITS) {
      setText(p.digits[unit].number, unit === "days" ? String(left.days) : twoDigits(left[unit]));
      setText(p.digits[unit].label, say(words, unit));
    }
    setChildren(p.items, cards);
  }
}
