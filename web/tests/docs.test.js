// What the page of the API makes of an address, a sale and a document.

import assert from "node:assert/strict";
import { test } from "node:test";
import { calls, filledIn, itemToTry } from "../docs/calls.js";

test("the calls are commands of a shell, whatever is in them", () => {
  const [token, claim, order] = calls({
    origin: "http://127.0.0.1:8080", item: 42, bearer: "it's", saleToken: "$(reboot)", key: "k-1", orderNo: "SK1",
  });
  assert.deepEqual([token, claim, order].map(({ name }) => name), ["token", "claim", "order"]);
  assert.ok(token.command.includes("-X POST 'http://127.0.0.1:8080/api/v1/items/42/token'"));
  assert.ok(token.command.includes("'Authorization: Bearer it'\\''s'"));
  assert.ok(claim.command.includes("-H 'X-Sale-Token: $(reboot)'") && claim.command.includes("'{\"quantity\":1}'"));
  assert.ok(order.command.includes("'http://127.0.0.1:8080/api/v1/orders/SK1'"));
  for (const { command } of calls({ origin: "https://sale.example" })) {
    assert.match(command, /^curl -sS \\\n {2}/);
    assert.match(command, /[A-Z]+_/, "what is not known has a name");
  }
});

test("what is open and has no challenge is tried first", () => {
  const item = (id, state, more = {}) => ({ id, state, challenge: "off", left: 5, opens_at: 1_000, ...more });
  const found = (...items) => itemToTry([{ items: items.slice(0, 1) }, { items: items.slice(1) }])?.id ?? null;
  assert.equal(found(item(1, "waiting"), item(2, "open")), 2);
  assert.equal(found(item(1, "open", { challenge: "pow" }), item(2, "waiting")), 2);
  assert.equal(found(item(1, "waiting", { opens_at: 2_000 }), item(2, "waiting")), 2);
  assert.equal(found(item(1, "sold_out", { left: 0 }), item(2, "ended")), null);
  assert.equal(found(), null);
});

test("an operation on the item can be sent as it stands, and the document stays as it was", () => {
  const id = { name: "id", in: "path" };
  const doc = { paths: {
    "/api/v1/items/{id}/claims": { post: { parameters: [id, { name: "Idempotency-Key", in: "header" }] } },
    "/api/v1/admin/items/{id}": { get: { parameters: [{ ...id }] } },
    "/api/v1/time": { get: {} },
  } };
  const filled = filledIn(doc, { item: 7 });
  const of = (path, method) => filled.paths[path][method].parameters.map(({ example }) => example);
  assert.deepEqual(of("/api/v1/items/{id}/claims", "post"), [7, undefined]);
  assert.deepEqual(of("/api/v1/admin/items/{id}", "get"), [undefined]);
  assert.equal(id.example, undefined);
});
