// A buyer and an operator in TypeScript, with nothing but the types made from docs/openapi.json and fetch.
// Whatever is asked for that the document does not know, or read that it does not promise, does not compile.

import type { paths } from "./schema.js";

type Method = "get" | "post" | "patch" | "delete";
type Operation<P extends keyof paths, M extends Method> = paths[P][M];
type Body<O> = O extends { requestBody: { content: { "application/json": infer B } } } ? B : undefined;
type Parameters<O, Where extends string> = O extends { parameters: infer All }
  ? Where extends keyof All ? NonNullable<All[Where]> : undefined : undefined;
type Good<R> = { [S in keyof R]: S extends 200 | 201 | 202
  ? R[S] extends { content: { "application/json": infer B } } ? B : undefined : never }[keyof R];
type Answer<O> = O extends { responses: infer R } ? Good<R> : never;

const process = (globalThis as unknown as { process: { env: Record<string, string> } }).process;
const { SERVER, BUYER, OPERATOR, ITEM, SKU } = process.env as Record<"SERVER" | "BUYER" | "OPERATOR" | "ITEM" | "SKU", string>;

async function call<P extends keyof paths, M extends Method, O = Operation<P, M>>(
  method: M,
  path: P,
  given: {
    path?: Parameters<O, "path">; query?: Parameters<O, "query">; header?: Parameters<O, "header">;
    body?: Body<O>; headers?: Record<string, string>;
  } = {},
): Promise<Answer<O>> {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String((given.path as unknown as Record<string, unknown>)[name])));
  const query = new URLSearchParams(Object.entries(given.query ?? {}).map(([name, value]) => [name, String(value)]));
  const response = await fetch(`${SERVER}${filled}?${query}`, {
    method: method.toUpperCase(),
    headers: { "Content-Type": "application/json", ...given.headers, ...(given.header as Record<string, string> | undefined) },
    ...(given.body === undefined ? {} : { body: JSON.stringify(given.body) }),
  });
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
  return await response.json() as Answer<O>;
}

function must(holds: boolean, what: string): asserts holds {
  if (!holds) throw new Error(what);
}

const buyer = { Authorization: `Bearer ${BUYER}` };
const operator = { Authorization: `Bearer ${OPERATOR}` };
const id = Number(ITEM);

const { now_ms: now } = await call("get", "/api/v1/time");
must(Math.abs(now - Date.now()) < 60_000, "the clocks agree");
const found = await call("get", "/api/v1/items", { query: { sku: SKU } });
const item = found.items[0];
must(item?.id === id && item.attributes?.["colour"] === "blue", "the item is found by the shop's id");

const { token } = await call("post", "/api/v1/items/{id}/token", { path: { id }, headers: buyer });
const claimed = await call("post", "/api/v1/items/{id}/claims", {
  path: { id }, header: { "Idempotency-Key": "ts-1" }, headers: { "X-Sale-Token": token }, body: { quantity: 1 },
});
const no = claimed.order_no;
let order = await call("get", "/api/v1/orders/{no}", { path: { no }, headers: buyer });
while (order.status === "queued") {
  await new Promise((resolve) => setTimeout(resolve, 50));
  order = await call("get", "/api/v1/orders/{no}", { path: { no }, headers: buyer });
}
must(order.status === "unpaid" && order.amount === item.price && order.sku === SKU, "the order is what was claimed");
must(order.pay_with?.[0]?.provider === "sandbox" && order.pay_with[0].methods.includes("page"), "it may be paid");

const { payment_url: url } = await call("post", "/api/v1/orders/{no}/payments", {
  path: { no }, headers: buyer, body: { provider: "sandbox" },
});
const cashier = new URL(url ?? "", SERVER);
const txn = cashier.pathname.split("/").at(-1) ?? "";
await call("post", "/api/v1/cashier/{txn}", {
  path: { txn }, query: { token: cashier.searchParams.get("token") ?? "" }, body: { action: "pay" },
});
while (order.status === "unpaid") {
  await new Promise((resolve) => setTimeout(resolve, 50));
  order = await call("get", "/api/v1/orders/{no}", { path: { no }, headers: buyer });
}
must(order.status === "paid" && order.payment?.state === "paid", `paid, not ${order.status}`);

const made = await call("post", "/api/v1/admin/activities", {
  headers: operator, header: { "Idempotency-Key": "ts-plan" },
  body: {
    name: "from TypeScript", opens_at: now + 3_600_000, closes_at: "2190-01-01T00:00:00Z", pay_within_ms: 60_000,
    items: [{ name: "Tea", sku: "TS-1", price: 990, currency: "JPY", stock: 5, limit_per_user: 1, shards: 1 }],
  },
});
must(made.state === "draft" && made.items[0]?.sku === "TS-1", "a draft is made");
const orders = await call("get", "/api/v1/admin/orders", { headers: operator, query: { sku: SKU, status: "paid" } });
must(orders.orders.some((one) => one.order_no === no), "the operator finds the order");
console.log(no);
