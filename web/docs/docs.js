// The page of the API: the three calls ready to copy, a demo token to try them with, and every operation
// in Swagger UI, which is a script of its own beside this one and shows what /openapi.json says.

import { ask } from "../answer.js";
import { call } from "../api.js";
import { byId, el, setText } from "../element.js";
import { dateTime, language, say, speaks } from "../i18n.js";
import { problemText } from "../problem.js";
import { calls, filledIn, itemToTry } from "./calls.js";
import { mend } from "./mend.js";
import { words } from "./words.js";

const CLAIMS = ["operations", "buyer", "post_items_id_claims"];
const COPIED_SHOWN_MS = 2_000;
/** Ten times as large as the rest of the page, so it comes after it. */
const SWAGGER_SCRIPT = "/assets/swagger/swagger-ui-bundle.js";
const SWAGGER_STYLE = "/assets/swagger/swagger-ui.css";

/** What the calls are filled with. */
/** What was learnt for the calls.
 * @type {{ origin: string, key: string, item?: number, bearer?: string, saleToken?: string }} */
const known = { origin: location.origin, key: crypto.randomUUID?.() ?? String(Date.now()) };
/** What was last said about the demo token, so that it can be said again in the other language. */
let note = () => "";
let codes = [];
let reference = null;
let failure = null;

// --- the three calls ---

async function copy(text, source) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // A page that did not come by TLS has no clipboard: what is marked can be copied by the old command.
    getSelection().selectAllChildren(source);
    document.execCommand("copy");
    getSelection().removeAllRanges();
  }
}

function callItem({ name, command }, n) {
  const code = el("code", {}, command);
  const button = el("button", { type: "button", class: "copy", "aria-label": say(words, "copyLabel", { n }) }, say(words, "copy"));
  button.addEventListener("click", async () => {
    await copy(command, code);
    setText(button, say(words, "copied"));
    setTimeout(() => setText(button, say(words, "copy")), COPIED_SHOWN_MS);
  });
  return el("li", { "data-call": name },
    el("h2", {}, say(words, name)),
    el("div", { class: "command" }, el("pre", { tabindex: 0 }, code), button),
    el("p", {}, say(words, `${name}Says`)));
}

// --- a demo token ---

async function getDemoToken() {
  const { activities } = await call("GET", "/activities", { cache: "no-store" });
  const item = itemToTry(activities);
  if (!item) return () => say(words, "demoNothing");
  const user = `demo-${Math.random().toString(36).slice(2, 8)}`;
  const { token: bearer } = await call("POST", "/dev/login", { body: { user_id: user } });
  const { token: saleToken } = await call("POST", `/items/${item.id}/token`, { bearer });
  Object.assign(known, { item: item.id, bearer, saleToken });
  fillReference();
  const values = { user, item: item.id, name: item.name };
  const { now_ms: nowMs } = await call("GET", "/time", { cache: "no-store" });
  const openIn = item.opens_at - nowMs;
  if (openIn <= 0) return () => say(words, "demoHave", values);
  const opensAt = Date.now() + openIn;
  setTimeout(draw, openIn);
  return () => Date.now() < opensAt
    ? say(words, "demoWaits", { ...values, at: dateTime(opensAt, Date.now()) })
    : say(words, "demoHave", values);
}

async function pressed() {
  const button = byId("demo");
  button.disabled = true;
  note = () => say(words, "getting");
  draw();
  try {
    note = await getDemoToken();
  } catch (problem) {
    note = () => say(words, "demoFailed", { why: problemText(problem, language()) });
  }
  button.disabled = false;
  draw();
}

/** Where anybody may be anybody there is a button; elsewhere a sentence that says what to do. */
async function offerDemo() {
  const { dev_login: offered } = await call("GET", "/shop");
  byId("demo").hidden = !offered;
  note = () => say(words, offered ? "demoOffer" : "demoOff");
  draw();
}

// --- codes ---

function codeRow({ code, status, retry_after_ms: pauseMs, ...sentences }) {
  const { title, detail } = sentences[language()];
  const again = pauseMs ? say(words, "seconds", { n: pauseMs / 1_000 }) : "–";
  return el("tr", { id: code },
    el("th", { scope: "row" }, el("a", { href: `#${code}` }, el("code", {}, code))),
    el("td", { class: "number" }, String(status)), el("td", { class: "number" }, again),
    el("td", {}, el("b", {}, title), detail));
}

function showCodes(explained) {
  codes = explained;
  draw();
  goToCode();
}

/** The `type` of a problem leads to the row of its code, which was not there when the page was opened. */
function goToCode() {
  const row = location.hash && byId(location.hash.slice(1));
  if (!row || !byId("code-rows").contains(row)) return;
  row.classList.add("asked");
  row.scrollIntoView({ block: "center" });
}

// --- all operations ---

function fillReference() {
  if (!reference || !known.saleToken) return;
  const { ui, doc } = reference;
  ui.specActions.updateSpec(JSON.stringify(filledIn(doc, known)));
  ui.preauthorizeApiKey("buyer", known.bearer);
  ui.preauthorizeApiKey("sale_token", known.saleToken);
  ui.layoutActions.show(CLAIMS, true);
}

/** Swagger UI has a class for the dark; browsers have a question. */
function followScheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
  dark.addEventListener("change", follow);
  follow();
}

const loaded = (node) => new Promise((resolve, reject) => {
  node.addEventListener("load", resolve);
  node.addEventListener("error", () => reject(new Error(node.src || node.href)));
  document.head.prepend(node);
});

async function showReference() {
  const doc = await ask("GET", "/openapi.json", { lang: language() });
  showCodes(doc["x-codes"]);
  // Before our own sheet, which corrects it.
  await Promise.all([
    loaded(el("link", { rel: "stylesheet", href: SWAGGER_STYLE })), loaded(el("script", { src: SWAGGER_SCRIPT })),
  ]);
  const ui = globalThis.SwaggerUIBundle({
    spec: doc,
    dom_id: "#swagger",
    docExpansion: "list",
    defaultModelsExpandDepth: -1,
    filter: true,
    tryItOutEnabled: true,
    displayRequestDuration: true,
    persistAuthorization: false,
    // Nothing is asked of anybody else.
    validatorUrl: null,
    requestInterceptor(request) {
      if (request.url.startsWith("/") || request.url.startsWith(location.origin)) {
        request.headers["Accept-Language"] = language();
      }
      return request;
    },
  });
  mend(byId("swagger"));
  reference = { ui, doc };
  byId("reference-note").hidden = true;
  fillReference();
}

// --- the page ---

function draw() {
  document.title = `${say(words, "title")} · Seckill`;
  byId("calls").replaceChildren(...calls(known).map((entry, i) => callItem(entry, i + 1)));
  setText(byId("demo-note"), note());
  byId("code-rows").replaceChildren(...codes.map(codeRow));
  if (failure) setText(byId("reference-note"), say(words, "failed", { why: failure }));
}

followScheme();
speaks(words, draw);
byId("demo").addEventListener("click", pressed);
addEventListener("hashchange", () => {
  document.querySelector(".asked")?.classList.remove("asked");
  goToCode();
});
offerDemo().catch((problem) => {
  note = () => problemText(problem, language());
  draw();
});
showReference().catch((error) => {
  failure = error.message;
  draw();
});
