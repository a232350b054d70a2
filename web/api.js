// Every call to /api/v1 of our own pages goes through here, in the viewer's language.

import { ask } from "./answer.js";
import { language } from "./i18n.js";

const BASE = "/api/v1";

/** @type {(method: string, path: string, options?: import("./answer.js").Asked) => Promise<any>} */
export const call = (method, path, options = {}) => ask(method, BASE + path, { lang: language(), ...options });

export const askTime = async () => (await call("GET", "/time", { cache: "no-store", answerWithinMs: 3_000 })).now_ms;
