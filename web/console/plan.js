// The wizard: a sale is planned as a draft. Nothing is shown to buyers before the pre-flight and Publish.

import { el } from "../element.js";
import { decimalText, decimalsOf } from "../money.js";
import { call } from "./call.js";
import { itemsOf, minor } from "./csv.js";
import { CURRENCIES } from "./currencies.js";
import { field, note } from "./parts.js";
import { shows } from "./preflight.js";
import { t, why, zone } from "./text.js";
import { fromLocal, toLocal } from "./times.js";

const MINUTE_MS = 60_000;

/** The next full hour that is at least half an hour away. */
const nextHour = (now) => Math.ceil((now + 30 * MINUTE_MS) / (60 * MINUTE_MS)) * 60 * MINUTE_MS;

function itemRow(given, { remove }) {
  const input = (attributes) => el("input", attributes);
  const name = input({ required: true, maxlength: "200", value: given.name ?? "" });
  const currency = el("select", { "aria-label": t("currency") }, CURRENCIES.map((code) => el("option", { selected: code === given.currency }, code)));
  const price = input({ required: true, inputmode: "decimal", value: given.price === undefined ? "" : decimalText(given.price, decimalsOf(given.currency)), placeholder: decimalText(0, decimalsOf(given.currency)) });
  const stock = input({ required: true, type: "number", min: "1", step: "1", value: given.stock ?? "" });
  const limit = input({ required: true, type: "number", min: "1", step: "1", value: given.limit_per_user ?? 1 });
  const shards = input({ required: true, type: "number", min: "1", step: "1", value: given.shards ?? 1 });
  const image = input({ type: "url", value: given.image_url ?? "", placeholder: "https://" });
  const shown = el("img", { alt: "", src: "/assets/placeholder.svg" });
  const look = async () => {
    const good = image.value !== "" && (await shows(image.value));
    image.setCustomValidity(image.value === "" || good ? "" : t("no_picture"));
    shown.src = good ? image.value : "/assets/placeholder.svg";
  };
  image.addEventListener("change", look);
  if (image.value) look();
  const isPrice = () => price.setCustomValidity(minor(price.value, currency.value) === null ? t("no_price") : "");
  price.addEventListener("change", isPrice);
  currency.addEventListener("change", () => {
    price.placeholder = decimalText(0, decimalsOf(currency.value));
    if (price.value !== "") isPrice();
  });
  const row = el("div", { class: "item-row" }, shown,
    field(t("item"), name), field(t("price"), el("span", { class: "amount" }, price, currency)), field(t("units"), stock), field(t("per_buyer"), limit), field(t("shards"), shards),
    field(t("picture"), image), el("button", { type: "button", class: "quiet", "aria-label": t("remove_item"), onclick: () => remove(row) }, "✕"));
  name.closest("label").classList.add("name");
  return {
    row,
    currency: () => currency.value,
    read: () => ({
      name: name.value.trim(), price: minor(price.value, currency.value), currency: currency.value, stock: Number(stock.value), limit_per_user: Number(limit.value), shards: Number(shards.value),
      ...(given.sku ? { sku: given.sku } : {}), ...(given.description ? { description: given.description } : {}), ...(given.origin_price ? { origin_price: given.origin_price } : {}),
      ...(image.value && !image.validity.customError ? { image_url: image.value } : {}),
    }),
  };
}

export function plan({ live }) {
  const told = note();
  const start = nextHour(live.now());
  const name = el("input", { required: true, maxlength: "200" });
  const opens = el("input", { type: "datetime-local", step: "1", required: true, value: toLocal(start) });
  const closes = el("input", { type: "datetime-local", step: "1", required: true, value: toLocal(start + 60 * MINUTE_MS) });
  const pay = el("input", { type: "number", min: "1", step: "1", required: true, value: "30" });
  const challenge = el("select", {}, ["off", "pow", "captcha"].map((kind) => el("option", { value: kind }, t(`challenge_${kind}`))));
  const members = el("input", { type: "checkbox" });
  const shuffle = el("input", { type: "number", min: "0", step: "100", value: "0" });
  const rows = [];
  const list = el("div", { class: "view" });
  /** The currency of the item before, for most sales have one. */
  const usual = () => rows.at(-1)?.currency() ?? CURRENCIES[0];
  const addItem = (given = {}) => {
    const made = itemRow({ currency: usual(), ...given }, {
      remove: (row) => {
        if (rows.length === 1) return;
        rows.splice(rows.findIndex((one) => one.row === row), 1);
        row.remove();
      },
    });
    rows.push(made);
    list.append(made.row);
    return made;
  };
  addItem();
  const when = el("p", { class: "hint" });
  const sayWhen = () => {
    const [from, to] = [fromLocal(opens.value), fromLocal(closes.value)];
    closes.setCustomValidity(to > from ? "" : t("closes_first"));
    opens.setCustomValidity(from > live.now() - MINUTE_MS ? "" : t("opens_past"));
    if (Number.isFinite(from)) when.textContent = `${t("in_your_zone", { zone: zone(new Date(from)) })} · ${new Date(from).toISOString().replace(".000", "")}`;
  };
  opens.addEventListener("input", sayWhen);
  closes.addEventListener("input", sayWhen);
  sayWhen();

  const pasted = el("textarea", { "aria-label": t("from_table"), spellcheck: "false", placeholder: "name,price,stock,limit_per_user,image_url\niPhone,6999.00,100,1,https://…" });
  const toldOfTable = note();
  const fromTable = (text) => {
    const read = itemsOf(text, usual());
    if (read.error) {
      toldOfTable.bad(t(`csv_${read.error}`, { line: read.line ?? "", column: read.column ?? "" }));
      return;
    }
    rows.splice(0).forEach(({ row }) => row.remove());
    read.items.forEach(addItem);
    toldOfTable.good(t("csv_read", { n: read.items.length }));
  };
  const file = el("input", { type: "file", "aria-label": t("from_table"), accept: ".csv,text/csv" });
  file.addEventListener("change", async () => { if (file.files[0]) fromTable(await file.files[0].text()); });

  const body = () => ({
    name: name.value.trim(), opens_at: fromLocal(opens.value), closes_at: fromLocal(closes.value), pay_within_ms: Number(pay.value) * MINUTE_MS,
    ...(challenge.value !== "off" || members.checked ? { door: { challenge: challenge.value, members_only: members.checked } } : {}),
    ...(Number(shuffle.value) > 0 ? { shuffle_ms: Number(shuffle.value) } : {}),
    items: rows.map((one) => one.read()),
  });
  const key = crypto.randomUUID();
  const form = el("form", { class: "view" },
    el("header", {}, el("h1", {}, t("plan_one"))),
    el("fieldset", {}, el("legend", {}, t("step_window")), field(t("name"), name),
      el("div", { class: "columns" }, field(t("opens"), opens), field(t("closes"), closes), field(t("pay_within_min"), pay)), when),
    el("fieldset", {}, el("legend", {}, t("items")), list, el("p", { class: "hint" }, t("shards_hint")),
      el("div", { class: "actions" }, el("button", { type: "button", onclick: () => addItem().row.querySelector("input").focus() }, t("add_item"))),
      el("details", {}, el("summary", {}, t("from_table")), el("div", { class: "view" }, el("p", { class: "hint" }, t("csv_hint")), pasted,
        el("div", { class: "actions" }, el("button", { type: "button", onclick: () => fromTable(pasted.value) }, t("take_table")), file), toldOfTable.line))),
    el("fieldset", {}, el("legend", {}, t("door")), el("div", { class: "columns" },
      field(t("challenge"), challenge, t("challenge_hint")),
      field(t("shuffle"), shuffle, t("shuffle_hint")),
      el("label", { class: "check" }, members, el("span", {}, t("members_only"))))),
    told.line,
    el("div", { class: "actions" }, el("button", { type: "submit", class: "primary" }, t("save_draft")), el("small", {}, t("save_says"))));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("[type=submit]");
    button.disabled = true;
    try {
      const made = await call("POST", "/activities", { body: body(), more: { "Idempotency-Key": `console-${key}` } });
      location.hash = `/sale/${made.id}`;
    } catch (problem) {
      told.bad(why(problem));
    } finally {
      button.disabled = false;
    }
  });
  return { place: form };
}
