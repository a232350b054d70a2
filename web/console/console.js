// The console: signing in, where one is, and which view is shown. A view is a function that makes an element;
// nothing is shared between views but the live stream and who is signed in.

import { byId, el, setText } from "../element.js";
import { language, setLanguage, speaks } from "../i18n.js";
import { forget, keep, recall } from "../storage.js";
import { board } from "./board.js";
import { call, session } from "./call.js";
import { Live } from "./live.js";
import { failed } from "./parts.js";
import { named, t, why } from "./text.js";
import { VIEWS } from "./views.js";
import { words } from "./words.js";

/** While a page is looked at its session is in use. */
const TOUCH_EVERY_MS = 5 * 60_000;
/** That somebody signed in here; who, only the cookie knows. Without it nobody is asked for, and nothing refused. */
const WAS_HERE = "seckill_console";
const LINK = /^#[0-9a-f]{64}$/;

const live = new Live();
let me = null;
let shown = null;

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const who = document.getElementById("who");
const shell = document.getElementById("shell");
const gate = document.getElementById("gate");
const told = document.getElementById("sign-in-note");

/** @type {[string, (about: any) => any, string][]} */
const PLACES = [["/live", board, "live"], ["/live/(\\d+)", board, "live"], ...VIEWS];

/** Where the address points: the first view whose pattern fits. */
function place() {
  const path = location.hash.slice(1) || "/live";
  for (const [pattern, view, section] of PLACES) {
    const match = new RegExp(`^${pattern}$`).exec(path.split("?")[0]);
    if (match) return { view, section, params: match.slice(1).map(decodeURIComponent), search: new URLSearchParams(path.split("?")[1] ?? "") };
  }
  return { view: board, section: "live", params: [], search: new URLSearchParams() };
}

async function show({ focus = true } = {}) {
  if (!me) return;
  const { view, section, params, search } = place();
  shown?.close?.();
  shown = null;
  for (const item of nav.querySelectorAll("a")) {
    if (item.dataset.section === section) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  main.replaceChildren(el("p", { class: "empty" }, t("loading")));
  const asked = location.hash;
  try {
    const made = await view({ live, role: me.role, params, search, again: () => show({ focus: false }) });
    // Somebody may have gone on meanwhile.
    if (asked !== location.hash || !me) {
      made.close?.();
      return;
    }
    shown = made;
    main.replaceChildren(made.place);
  } catch (problem) {
    main.replaceChildren(failed(problem, () => show()));
  }
  document.title = `${t(`nav_${section}`)} · Seckill`;
  if (focus) main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function signedIn(as) {
  me = as;
  keep(WAS_HERE, "1");
  gate.hidden = true;
  shell.hidden = false;
  setText(who, `${as.name} · ${named("role", as.role)}`);
  live.start();
  show();
}

function signedOut(text = "") {
  me = null;
  forget(WAS_HERE);
  shown?.close?.();
  shown = null;
  live.stop();
  shell.hidden = true;
  gate.hidden = false;
  main.replaceChildren();
  setText(told, text);
  document.getElementById("token").focus();
}

async function signIn(body) {
  setText(told, t("signing_in"));
  try {
    signedIn(await call("POST", "/session", { body }));
    setText(told, "");
  } catch (problem) {
    signedOut(why(problem));
  }
}

async function begin() {
  if (LINK.test(location.hash)) {
    const link = location.hash.slice(1);
    // It is good once; the address must not be what is kept or shown to somebody.
    history.replaceState(null, "", location.pathname);
    await signIn({ link });
    return;
  }
  if (!recall(WAS_HERE)) {
    signedOut();
    return;
  }
  try {
    signedIn(await call("GET", "/session"));
  } catch (problem) {
    signedOut(problem.status === 401 ? "" : why(problem));
  }
}

document.getElementById("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  const input = byId("token");
  const token = input.value.trim();
  input.value = "";
  if (token) signIn({ token });
});
document.getElementById("sign-out").addEventListener("click", async () => {
  try {
    await call("DELETE", "/session");
  } catch { /* whoever is signed out already wanted that */ }
  signedOut(t("signed_out"));
});
for (const other of document.querySelectorAll(".other-language")) {
  other.addEventListener("click", () => setLanguage(language() === "zh" ? "en" : "zh"));
}
document.getElementById("skip").addEventListener("click", (event) => {
  // The address says which view is shown.
  event.preventDefault();
  main.focus();
});
session.addEventListener("over", () => { if (me) signedOut(t("session_over")); });
addEventListener("hashchange", () => show());
setInterval(() => {
  if (me && document.visibilityState === "visible") call("GET", "/session").catch(() => {});
}, TOUCH_EVERY_MS);

speaks(words, () => {
  document.getElementById("nav").setAttribute("aria-label", t("views"));
  if (me) {
    setText(who, `${me.name} · ${named("role", me.role)}`);
    show({ focus: false });
  }
});
begin();
