// Items from a table: CSV as spreadsheets write it, with a line of names first. What the values mean is for the
// server to judge; here only the shape is read.

import { decimalsOf } from "../money.js";
import { CURRENCIES } from "./currencies.js";

const ROWS_MAX = 1_000;
/** The names a column may have, and what it is for the server. */
const COLUMNS = {
  name: "name", item: "name", "商品": "name", "名称": "name",
  sku: "sku", price: "price", "价格": "price", origin_price: "origin_price", "原价": "origin_price", currency: "currency", "币种": "currency",
  stock: "stock", units: "stock", "库存": "stock", limit_per_user: "limit_per_user", limit: "limit_per_user", "限购": "limit_per_user",
  shards: "shards", "分片": "shards", image_url: "image_url", image: "image_url", "图片": "image_url", description: "description", "描述": "description",
};
const WHOLE = new Set(["stock", "limit_per_user", "shards"]);

/** Lines of cells; quotes as RFC 4180 has them, commas, semicolons or tabs between. */
export function cells(text) {
  const first = text.split(/\r?\n/, 1)[0];
  const between = ["\t", ";", ","].find((mark) => first.includes(mark)) ?? ",";
  const lines = [[]];
  let cell = "";
  let quoted = false;
  const end = () => {
    lines.at(-1).push(cell.trim());
    cell = "";
  };
  for (let i = 0; i < text.length; i += 1) {
    const c = text[i];
    if (quoted) {
      if (c !== "\"") cell += c;
      else if (text[i + 1] === "\"") {
        cell += "\"";
        i += 1;
      } else quoted = false;
    } else if (c === "\"" && cell.trim() === "") {
      cell = "";
      quoted = true;
    } else if (c === between) end();
    else if (c === "\n") {
      end();
      lines.push([]);
    } else if (c !== "\r") cell += c;
  }
  end();
  return lines.filter((line) => line.some((value) => value !== ""));
}

/** "6,999.00" is 699900 of a currency with two decimals; null if it is no price. */
export function minor(text, currency) {
  const decimals = decimalsOf(currency);
  const match = /^(\d{1,12})(?:\.(\d+))?$/.exec(String(text).replaceAll(",", "").trim());
  if (!match || (match[2]?.length ?? 0) > decimals) return null;
  return Number(match[1] + (match[2] ?? "").padEnd(decimals, "0"));
}

/** The items of a table, or {error, line, column}. */
export function itemsOf(text, currency) {
  const [head, ...lines] = cells(text.replace(/^\ufeff/, ""));
  const names = (head ?? []).map((name) => COLUMNS[name.toLowerCase()]);
  if (!["name", "price", "stock"].every((name) => names.includes(name))) return { error: "columns" };
  if (lines.length > ROWS_MAX) return { error: "rows" };
  const items = [];
  for (const [n, line] of lines.entries()) {
    const item = { currency };
    for (const [i, name] of names.entries()) {
      const value = line[i];
      if (name && value !== undefined && value !== "") item[name] = WHOLE.has(name) ? Number(value) : value;
    }
    // What is no currency has no decimals by which its prices could be read.
    if (!CURRENCIES.includes(item.currency)) return { error: "currency", line: n + 2, column: item.currency };
    for (const name of ["price", "origin_price"]) {
      if (item[name] === undefined) continue;
      item[name] = minor(item[name], item.currency);
      if (item[name] === null) return { error: "price", line: n + 2, column: name };
    }
    items.push(item);
  }
  return items.length === 0 ? { error: "empty" } : { items };
}
