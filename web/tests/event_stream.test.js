// Events are read however the network cuts them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { EventParser } from "../event_stream.js";

const STREAM = ": hello\n\nevent: order\ndata: {\"a\":1}\n\ndata: one\ndata:two\nid: 3\n\nevent: empty\n\n";
const EVENTS = [{ event: "order", data: '{"a":1}' }, { event: "message", data: "one\ntwo" }];

test("events are read however the network cuts them, with any line ending", () => {
  for (const ending of ["\n", "\r\n", "\r"]) {
    const stream = `${STREAM.replaceAll("\n", ending)}: end\n`;
    for (const size of [1, 2, 3, 7, 1_000]) {
      const parser = new EventParser();
      const events = [];
      for (let i = 0; i < stream.length; i += size) events.push(...parser.push(stream.slice(i, i + size)));
      assert.equal(parser.lastId, "3");
      assert.deepEqual(events, EVENTS, `${JSON.stringify(ending)} in pieces of ${size}`);
    }
  }
});

test("a line without an end does not fill the memory", () => {
  const parser = new EventParser();
  assert.throws(() => parser.push("x".repeat(70_000)), RangeError);
});
