// The demo's sign-in box. A real shop has its own login and hands its token over.

import { byId, setAttribute, setText } from "../element.js";
import { language, say } from "../i18n.js";
import { problemText } from "../problem.js";
import { isUserId, suggestedUserId } from "./buyer.js";
import { words } from "./words.js";

export class SignInBox {
  #buyer;
  #note = null;
  /** Shown only where the shop says that there is a demo sign-in. */
  #absent = true;

  constructor(buyer) {
    this.#buyer = buyer;
    byId("user-id").value = suggestedUserId();
    byId("sign-in-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    byId("sign-out").addEventListener("click", () => buyer.signOut());
  }

  /** What the shop said: may anybody sign in here? */
  offer(devLogin) {
    // For the shop's engineer, who wonders why nobody is signed in. Buyers do not look here.
    if (!devLogin && !this.#buyer.signedIn) console.info("Seckill: the shop hands over the buyer's JWT as localStorage.seckill_jwt (docs/INTEGRATION.md).");
    this.#absent = !devLogin;
    this.#note = devLogin ? null : () => say(words, "noDevLogin");
  }

  draw() {
    const { signedIn, user } = this.#buyer;
    byId("sign-in-form").hidden = signedIn || this.#absent;
    byId("signed-in").hidden = !signedIn;
    setText(byId("user"), user ?? "");
    const over = this.#buyer.expired ? say(words, this.#absent ? "expiredShop" : "expiredDemo") : null;
    const note = signedIn ? "" : over ?? this.#note?.() ?? (this.#absent ? "" : say(words, "demoLogin"));
    setText(byId("sign-in-note"), note);
    setAttribute(byId("sign-in-note"), "data-tone", over && "bad");
    byId("sign-in-note").hidden = note === "";
  }

  /** The buyer pressed Buy without being anyone. */
  invite() {
    const input = byId("user-id");
    if (input.checkVisibility?.() ?? true) input.focus();
  }

  async #submit() {
    const userId = byId("user-id").value.trim();
    this.#note = isUserId(userId) ? null : () => say(words, "badUserId");
    if (!this.#note) {
      try {
        await this.#buyer.signIn(userId);
      } catch (problem) {
        this.#absent = problem.status === 404 || problem.status === 403;
        this.#note = this.#absent ? () => say(words, "noDevLogin") : () => problemText(problem, language());
      }
    }
    this.draw();
  }
}
