// The reader shows what the document says.

import assert from "node:assert/strict";
import { test } from "node:test";
import { address, content, enumOf, example, fields, matches, operations, resolve, typeName } from "../docs/schema.js";

const doc = {
  paths: {
    "/items/{id}/claims": {
      parameters: [{ name: "id", in: "path", required: true, schema: { type: "integer" } }],
      post: {
        tags: ["buyer"], summary: "Claim units", parameters: [{ $ref: "#/components/parameters/Page" }],
        requestBody: { content: { "application/json": { schema: { $ref: "#/components/schemas/Order" } } } },
      },
    },
    "/time": { get: {} },
  },
  components: {
    parameters: { Page: { name: "page", in: "query", schema: { type: "integer" } } },
    schemas: {
      Status: { type: "string", enum: ["queued", "paid"] },
      Base: { type: "object", required: ["no"], properties: { no: { type: "string", example: "SK1" } } },
      Order: {
        allOf: [{ $ref: "#/components/schemas/Base" }, {
          type: "object",
          properties: {
            status: { $ref: "#/components/schemas/Status" },
            reason: { oneOf: [{ type: "null" }, { $ref: "#/components/schemas/Status" }] },
            parts: { type: "array", items: { $ref: "#/components/schemas/Order" } },
            at: { type: ["integer", "null"], format: "int64" },
          },
        }],
      },
      "odd/name": { type: "boolean" },
    },
  },
};
const Order = { $ref: "#/components/schemas/Order" };

test("references are followed, odd names and dead ends too", () => {
  assert.deepEqual(resolve(doc, { $ref: "#/components/schemas/odd~1name" }), { type: "boolean" });
  assert.deepEqual(resolve(doc, { $ref: "#/nowhere/at/all" }), {});
  assert.deepEqual(resolve({ a: { $ref: "#/a" } }, { $ref: "#/a" }), {}, "a circle ends");
});

test("types read like a sentence", () => {
  assert.equal(typeName(doc, { type: "array", items: Order }), "array of Order");
  assert.equal(typeName(doc, { type: ["integer", "null"], format: "int64" }), "integer (int64) or null");
  assert.equal(typeName(doc, { oneOf: [{ type: "null" }, Order] }), "null or Order");
});

test("an object in pieces is one list of fields, and one that contains itself ends", () => {
  const list = fields(doc, Order);
  assert.deepEqual(list.map((f) => f.name), ["no", "status", "reason", "parts", "at"]);
  assert.equal(list[0].required, true);
  assert.deepEqual(list[1].values, ["queued", "paid"]);
  assert.deepEqual(list[3].fields.map((f) => f.name), ["no", "status", "reason", "parts", "at"]);
  assert.deepEqual(enumOf(doc, { oneOf: [{ const: 1 }, { const: 2 }] }), [1, 2]);
});

test("an example is made up where none is given", () => {
  const made = example(doc, Order);
  assert.equal(made.no, "SK1");
  assert.equal(made.status, "queued");
  assert.equal(made.at, 0);
  assert.equal(content(doc, doc.paths["/items/{id}/claims"].post.requestBody).mediaType, "application/json");
});

test("operations inherit their path's parameters and are found by any word", () => {
  const [claims, time] = operations(doc);
  assert.deepEqual(claims.parameters.map((p) => p.name), ["id", "page"]);
  assert.ok(matches(claims, "BUYER claim") && !matches(time, "buyer") && matches(time, ""));
  assert.equal(address(claims, { "path:id": "4/2", "query:page": "3" }), "/items/4%2F2/claims?page=3");
  assert.equal(address(claims, { "path:id": "42", "query:page": "" }), "/items/42/claims");
});
