// Who is buying. Identity is the shop's own JWT; the demo's sign-in gets one from /dev/login.

import { call } from "../api.js";
import { Problem } from "../problem.js";
import { forget, keep, recall } from "../storage.js";

const JWT = "seckill_jwt";
const USER = "seckill_user";
/** Set while the JWT came from the demo's sign-in, which may then be repeated without asking. */
const DEMO = "seckill_demo_login";
const SIGN_IN_BEFORE_EXPIRY_MS = 30_000;

/** The claims inside a JWT, unverified: the page only wants a name to show and an expiry to mind. */
export function jwtClaims(jwt) {
  try {
    const base64 = jwt.split(".")[1].replaceAll("-", "+").replaceAll("_", "/");
    const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
    return JSON.parse(new TextDecoder().decode(bytes)) ?? {};
  } catch {
    return {};
  }
}

/** 1 to 64 visible characters, as the server wants them. */
export const isUserId = (text) => {
  const length = [...text].length;
  return length >= 1 && length <= 64 && !/[\s\p{Cc}]/u.test(text);
};

/** Something to start with that two visitors of a demo are unlikely to share. */
export const suggestedUserId = () =>
  recall(USER) ?? `u${100_000 + (crypto.getRandomValues(new Uint32Array(1))[0] % 900_000)}`;

export class Buyer {
  #jwt = null;
  #signingIn = null;
  #onChange;
  #now;
  user = null;
  /** The shop no longer knows who was signed in here. */
  expired = false;

  constructor({ now, onChange }) {
    this.#now = now;
    this.#onChange = onChange;
    this.#jwt = recall(JWT);
    if (this.#jwt) this.user = jwtClaims(this.#jwt).sub ?? recall(USER) ?? "?";
  }

  get signedIn() {
    return this.#jwt !== null;
  }

  async signIn(userId) {
    const { token } = await call("POST", "/dev/login", { body: { user_id: userId } });
    const changed = this.user !== userId || !this.signedIn;
    this.#jwt = token;
    this.user = userId;
    this.expired = false;
    keep(JWT, token);
    keep(USER, userId);
    keep(DEMO, "1");
    if (changed) this.#onChange();
  }

  signOut() {
    if (!this.signedIn) return;
    this.#jwt = null;
    this.user = null;
    forget(JWT);
    forget(DEMO);
    this.#onChange();
  }

  bearer = () => this.#jwt;

  #signInAgain() {
    this.#signingIn ??= this.signIn(this.user).finally(() => { this.#signingIn = null; });
    return this.#signingIn;
  }

  #expiresSoon() {
    const { exp } = jwtClaims(this.#jwt);
    return Number.isFinite(exp) && exp * 1_000 - SIGN_IN_BEFORE_EXPIRY_MS < this.#now();
  }

  /** A call in the buyer's name. */
  async ask(method, path, options = {}) {
    if (!this.signedIn) throw new Problem({ code: "unauthorized", status: 401 });
    const demo = recall(DEMO) !== null;
    if (demo && this.#expiresSoon()) await this.#signInAgain().catch(() => {});
    try {
      return await call(method, path, { ...options, bearer: this.#jwt });
    } catch (problem) {
      if (problem.status !== 401) throw problem;
      // The demo's keys may have changed with a restart; one silent sign-in tells.
      const again = demo && (await this.#signInAgain().then(() => true, () => false));
      if (again) return call(method, path, { ...options, bearer: this.#jwt });
      this.expired = this.signedIn;
      this.signOut();
      throw problem;
    }
  }
}
