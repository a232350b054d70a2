// What the page of one item says beside its card: more pictures, the shop's own words, and its attributes.

import { byId, el, setAttribute, setChildren, setText } from "../element.js";
import { language, locale, say } from "../i18n.js";
import { words } from "./words.js";

/** The item that an address names, or null on the page of all. */
export function itemOf(pathname) {
  const found = /^\/items\/([1-9]\d{0,17})$/.exec(pathname);
  return found ? Number(found[1]) : null;
}

/** An item as the list would show it: in a sale of its own. */
export const saleOf = (item) => ({
  id: item.activity_id, name: item.activity_name ?? "", opens_at: item.opens_at, closes_at: item.closes_at,
  members_from: item.members_from, members_only: item.members_only, resumes_at: item.resumes_at,
  state: ["paused", "ended"].includes(item.state) ? item.state : "published", items: [item],
});

export class ItemPage {
  #drawn = "";

  /** `onPicture(url)` when another picture is wanted. */
  constructor({ onPicture }) {
    this.onPicture = onPicture;
  }

  update(item) {
    const told = JSON.stringify([item.images, item.description, item.attributes, language()]);
    if (told === this.#drawn) return;
    this.#drawn = told;
    setChildren(byId("about-item"), [
      item.images?.length > 1 ? this.#gallery(item) : null,
      item.description ? el("p", { class: "words" }, item.description) : null,
      this.#facts(item.attributes ?? {}),
      el("p", {}, el("a", { class: "others", href: "/" }, say(words, "allItems"))),
    ].filter(Boolean));
  }

  #gallery({ images, name }) {
    const buttons = images.map((url, n) => el("button", {
      type: "button", "aria-pressed": String(n === 0), "aria-label": say(words, "pictureOf", { n: n + 1, name }),
      onclick: () => {
        this.onPicture(url);
        buttons.forEach((button, m) => setAttribute(button, "aria-pressed", String(m === n)));
      },
    }, el("img", { src: url, alt: "", width: 76, height: 57 })));
    return el("div", { class: "gallery" }, buttons);
  }

  #facts(attributes) {
    const rows = Object.entries(attributes).flatMap(([name, value]) => {
      const fact = el("dd");
      setText(fact, factText(value));
      return [el("dt", {}, name), fact];
    });
    return rows.length > 0 ? el("dl", { class: "facts" }, rows) : null;
  }
}

function factText(value) {
  if (typeof value === "boolean") return say(words, value ? "yes" : "no");
  return typeof value === "number" ? value.toLocaleString(locale()) : String(value);
}
