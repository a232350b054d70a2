// One sale: a panel that says by its colour where it stands, its countdown, its items.

import { split, twoDigits } from "../countdown.js";
import { el, setAttribute, setChildren, setText } from "../element.js";
import { dateTime, say } from "../i18n.js";
import { FINAL_MS, phase } from "./phase.js";
import { words } from "./words.js";

/** What the panel shows: soon | final | open | paused | ended. */
export function stageOf(activity, now, synced) {
  if (!synced) return "soon";
  const stage = phase(activity, now);
  if (stage === "open" && activity.state === "paused") return "paused";
  return stage === "soon" && activity.opens_at - now <= FINAL_MS ? "final" : stage;
}

/** When a pause is over by itself; null once that is past, for then nobody knows. */
export function resumesAt({ state, resumes_at: at }, now) {
  return state === "paused" && Number.isFinite(at) && at > now ? at : null;
}

export class ActivitySection {
  #parts;

  constructor(id) {
    const p = {
      name: el("h2", { id: `activity-${id}` }),
      opens: el("time"),
      closes: el("time"),
      members: el("p", { class: "members" }),
      label: el("span", { class: "phase" }),
      digits: el("span", { class: "digits", role: "timer" }),
      items: el("div", { class: "items" }),
    };
    this.#parts = p;
    this.node = el("section", { class: "activity", "data-activity": id, "aria-labelledby": `activity-${id}` },
      el("header", { class: "panel" },
        el("div", {}, p.name, el("p", { class: "when" }, p.opens, " – ", p.closes), p.members),
        el("div", { class: "countdown" }, p.label, p.digits)),
      p.items);
  }

  update({ activity, now, synced, cards }) {
    const p = this.#parts;
    const stage = stageOf(activity, now, synced);
    setAttribute(this.node, "data-phase", stage);
    setText(p.name, activity.name || say(words, "title"));
    const { opens_at: opens, closes_at: closes, members_from: members, members_only: only } = activity;
    // The end needs its date only if that is another day than the beginning's.
    for (const [node, at, seenFrom] of [[p.opens, opens, now], [p.closes, closes, opens]]) {
      setAttribute(node, "datetime", new Date(at).toISOString());
      setText(node, dateTime(at, seenFrom));
    }
    const times = { members: dateTime(members ?? opens, now), everybody: dateTime(opens, now) };
    const early = Number.isFinite(members) && members < opens && stage !== "ended";
    setText(p.members, only ? say(words, "membersOnly") : early ? say(words, "membersFirst", times) : "");
    const before = stage === "soon" || stage === "final";
    const goesOn = stage === "paused" ? resumesAt(activity, now) : null;
    const left = split((before ? opens : goesOn ?? closes) - now);
    const paused = goesOn === null ? "paused" : "pausedUntil";
    const label = { soon: "opensIn", final: "opensIn", open: "endsIn", paused, ended: "over" }[stage];
    const daysToo = left.days > 0 && ["opensIn", "endsIn"].includes(label);
    setText(p.label, say(words, daysToo ? `${label}Days` : label, { days: left.days }));
    setAttribute(p.digits, "data-off", stage === "ended" || !synced);
    setText(p.digits, [left.hours, left.minutes, left.seconds].map(twoDigits).join(":"));
    setChildren(p.items, cards);
  }
}
