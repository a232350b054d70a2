// Shows /openapi.json as a page one can read, and lets every operation be tried.

import { byId, el, setText } from "../element.js";
import { language, say, speaks } from "../i18n.js";
import { address, content, enumOf, example, fields, matches, operations, refName, typeName } from "./schema.js";
import { words } from "./words.js";

const json = (value) => JSON.stringify(value, null, 2);
/** An event stream never ends; what is shown of an answer does. */
const SHOWN_CHARS_MAX = 65_536;

let doc = null;
let failure = null;
const open = new Set();

// --- reading ---

function fieldList(list) {
  if (list.length === 0) return null;
  return el("ul", { class: "fields" }, list.map((field) => el("li", {},
    el("code", {}, field.name), " ", el("span", { class: "type" }, field.type),
    field.required ? el("span", { class: "must" }, ` ${say(words, "required")}`) : null,
    field.description ? el("span", {}, ` ${field.description}`) : null,
    facts(field), fieldList(field.fields))));
}

/** @param {{values?: any[], fallback?: any, example?: any}} schema */
function facts({ values = [], fallback, example: sample }) {
  const lines = [];
  if (values.length > 0) lines.push([say(words, "values"), values.map((value) => JSON.stringify(value)).join(" | ")]);
  if (fallback !== undefined) lines.push([say(words, "default"), JSON.stringify(fallback)]);
  if (sample !== undefined) lines.push([say(words, "example"), JSON.stringify(sample)]);
  return lines.map(([label, text]) => el("span", { class: "fact" }, `${label}: `, el("code", {}, text)));
}

function shape(part) {
  const nodes = [part.description ? el("p", {}, part.description) : null];
  if (part.schema) {
    nodes.push(el("p", { class: "type" }, `${part.mediaType} · ${refName(part.schema) ?? typeName(doc, part.schema)}`));
    nodes.push(...facts({ values: enumOf(doc, part.schema) }), fieldList(fields(doc, part.schema)));
  } else if (part.mediaType) nodes.push(el("p", { class: "type" }, part.mediaType));
  if (part.sample !== undefined && part.sample !== null) {
    nodes.push(el("details", { class: "sample" }, el("summary", {}, say(words, "example")),
      el("pre", { tabindex: 0 }, typeof part.sample === "string" ? part.sample : json(part.sample))));
  }
  return nodes;
}

function parameterList(entry) {
  if (entry.parameters.length === 0) return [];
  return [el("h4", {}, say(words, "parameters")), fieldList(entry.parameters.map((p) => ({
    name: p.name, type: `${p.in} · ${typeName(doc, p.schema ?? {})}`, required: p.required,
    description: p.description ?? "", values: enumOf(doc, p.schema ?? {}),
    fallback: p.schema?.default, example: p.example ?? p.schema?.example, fields: [],
  })))];
}

function responseList(entry) {
  const answers = Object.entries(entry.operation.responses ?? {});
  return [el("h4", {}, say(words, "responses")), ...answers.map(([status, answer]) => {
    const part = content(doc, answer);
    return el("details", { class: "response", "data-class": status[0] },
      el("summary", {}, el("b", {}, status), " ", part.description),
      shape({ ...part, description: "" }));
  })];
}

function article(entry) {
  const { operation } = entry;
  const body = operation.requestBody ? content(doc, operation.requestBody) : null;
  // Built when opened: a page of fifty operations stays light on a slow phone.
  const inside = el("div", { class: "inside" });
  const build = () => {
    if (inside.childElementCount > 0) return;
    inside.append(...[
      operation.description ? el("p", { class: "about" }, operation.description) : null,
      ...parameterList(entry),
      ...(body ? [el("h4", {}, say(words, "body")), ...shape(body)] : []),
      ...responseList(entry),
      tryForm(entry, body),
    ].flat().filter(Boolean));
  };
  const node = el("details", { class: "operation", id: entry.id, "data-method": entry.method, open: open.has(entry.id) },
    el("summary", {},
      el("span", { class: "method" }, entry.method), " ", el("code", { class: "path" }, entry.path), " ",
      el("span", { class: "summary" }, operation.summary ?? ""),
      operation.deprecated ? el("span", { class: "must" }, say(words, "deprecated")) : null),
    inside);
  node.addEventListener("toggle", () => {
    if (node.open) open.add(entry.id);
    else open.delete(entry.id);
    build();
  });
  if (node.open) build();
  return node;
}

// --- trying ---

function tryForm(entry, body) {
  const input = (name, value, required, label) => el("label", {}, el("span", {}, label),
    el("input", { name, value: value ?? "", required, autocomplete: "off", spellcheck: "false" }));
  const answer = el("pre", { class: "answer", hidden: true, tabindex: 0, "aria-live": "polite" });
  const send = el("button", { type: "submit" }, say(words, "send"));
  const stop = el("button", { type: "button", class: "quiet", hidden: true }, say(words, "stop"));
  const form = el("form", { class: "try" },
    el("h4", {}, say(words, "tryIt")),
    entry.parameters.filter((p) => p.in !== "cookie").map((p) => input(`${p.in}:${p.name}`,
      p.example ?? (p.in === "path" ? example(doc, p.schema ?? {}) : ""), p.in === "path", `${p.name} · ${p.in}`)),
    body ? el("label", {}, el("span", {}, say(words, "body")),
      el("textarea", { name: "body", rows: 6, spellcheck: "false" }, body.sample === undefined ? "" : json(body.sample))) : null,
    el("div", { class: "actions" }, send, stop), answer);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    trySend(entry, body, Object.fromEntries(new FormData(form)), { answer, send, stop });
  });
  return form;
}

async function trySend(entry, body, values, { answer, send, stop }) {
  const abort = new AbortController();
  stop.onclick = () => abort.abort();
  send.disabled = true;
  stop.hidden = answer.hidden = false;
  answer.textContent = "…";
  const headers = { "Accept-Language": language() };
  for (const p of entry.parameters) {
    const value = values[`header:${p.name}`];
    if (p.in === "header" && value) headers[p.name] = value;
  }
  if (byId("bearer").value.trim()) headers.Authorization = `Bearer ${byId("bearer").value.trim()}`;
  if (body && values.body) headers["Content-Type"] = body.mediaType;
  const startedAt = performance.now();
  try {
    const response = await fetch(base() + address(entry, values), {
      method: entry.method, headers, body: body && values.body ? values.body : undefined, signal: abort.signal,
    });
    await show(response, startedAt, answer);
  } catch (error) {
    if (!abort.signal.aborted) answer.textContent = say(words, "noAnswer", { why: error.message });
  }
  abort.abort();
  send.disabled = false;
  stop.hidden = true;
}

async function show(response, startedAt, answer) {
  const head = [`${response.status} ${response.statusText} · ${Math.round(performance.now() - startedAt)} ms`,
    ...[...response.headers].map(([name, value]) => `${name}: ${value}`), "", ""].join("\n");
  answer.textContent = head;
  const reader = response.body?.getReader();
  const decoder = new TextDecoder();
  let text = "";
  while (reader && text.length < SHOWN_CHARS_MAX) {
    const { value, done } = await reader.read();
    if (done) break;
    text += decoder.decode(value, { stream: true });
    answer.textContent = head + text;
  }
  if (/json/.test(response.headers.get("Content-Type") ?? "")) {
    try {
      answer.textContent = head + json(JSON.parse(text));
    } catch { /* cut short, or not JSON after all: it stands as it came */ }
  }
}

/** Only paths on this host: the policy of the page forbids others, and so does good sense. */
function base() {
  const url = doc.servers?.[0]?.url ?? "";
  return url.startsWith("/") ? url.replace(/\/$/, "") : "";
}

// --- the page ---

function draw() {
  document.title = `${say(words, "title")} · Seckill`;
  byId("filter").placeholder = say(words, "filter");
  const list = byId("operations");
  const note = failure ? say(words, "failed", { why: failure }) : doc ? null : say(words, "loading");
  byId("note").hidden = note === null;
  setText(byId("note"), note ?? "");
  if (!doc) return;
  setText(byId("about"), [doc.info?.title, doc.info?.version].filter(Boolean).join(" "));
  setText(byId("description"), doc.info?.description ?? "");
  const found = operations(doc).filter((entry) => matches(entry, byId("filter").value.trim()));
  setText(byId("count"), found.length > 0 ? say(words, "operations", { count: found.length }) : say(words, "nothing"));
  const named = (doc.tags ?? []).map(({ name }) => name);
  const tags = [...new Set([...named, ...found.flatMap(({ tags: own }) => own)])];
  list.replaceChildren(...tags.flatMap((tag) => {
    const mine = found.filter((entry) => entry.tags[0] === tag);
    if (mine.length === 0) return [];
    const about = doc.tags?.find(({ name }) => name === tag)?.description;
    return el("section", {}, el("h2", {}, tag || say(words, "other")), about ? el("p", {}, about) : null, mine.map(article));
  }));
}

async function load() {
  try {
    const response = await fetch("/openapi.json", { headers: { "Accept-Language": language() } });
    if (!response.ok) throw new Error(`${response.status}`);
    doc = await response.json();
  } catch (error) {
    failure = error.message;
  }
  if (location.hash) open.add(decodeURIComponent(location.hash.slice(1)));
  draw();
  if (location.hash) byId(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

byId("filter").addEventListener("input", draw);
byId("tools").addEventListener("submit", (event) => event.preventDefault());
speaks(words, draw);
load();
