// The letters of a picture, read by the buyer: a small dialog, with a way out for whoever cannot read it.

import { el } from "../element.js";
import { say } from "../i18n.js";
import { words } from "./words.js";

/** Of several pictures one is shown after the other. */
let shown = Promise.resolve();

/** Resolves to what was typed, or to null if the buyer would rather wait. */
export function readPicture(image) {
  shown = shown.then(() => show(image));
  return shown;
}

function show(image) {
  return new Promise((resolve) => {
    const input = el("input", {
      name: "code", required: true, autocomplete: "off", autocapitalize: "characters", spellcheck: "false",
      maxlength: 12, "aria-label": say(words, "pictureLetters"),
    });
    const skip = el("button", { type: "button", value: "skip" }, say(words, "pictureSkip"));
    const form = el("form", { method: "dialog" },
      el("p", {}, say(words, "pictureAsk")),
      el("img", { src: image, alt: say(words, "pictureAlt"), width: 240, height: 80 }),
      input, el("button", { type: "submit" }, say(words, "pictureDone")), skip);
    const dialog = el("dialog", { class: "picture" }, form);
    skip.addEventListener("click", () => dialog.close("skip"));
    dialog.addEventListener("close", () => {
      const typed = dialog.returnValue === "skip" ? "" : input.value.trim();
      dialog.remove();
      resolve(typed || null);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
