// The page's modules without a browser: what they make of listings, events and streams.

import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.navigator ??= { language: "en" };
const { sseParser } = await import("../console/api.js");
const { lineLayout, unitsOf, bucketsOf } = await import("../console/line.js");
const { lengthsOf } = await import("../console/timeline.js");
const { dropUnseen, lineOf, model, takeEvent, takeHistory, takeLine } = await import("../console/state.js");
const { num } = await import("../console/i18n.js");
const { readable } = await import("../console/cells.js");

const owner = (program) => ({ program, host: "h", pid: 7 });
const row = (id, more = {}) => ({ ticket: id, mode: "exclusive", owner: owner(id), label: "", entered_ago_ms: 1000, granted_ago_ms: null, ends_in_ms: 15_000, ...more });
const held = (id, fence, more = {}) => row(id, { fence, fence_text: String(fence), granted_ago_ms: 500, ...more });
const event = (type, lock, ticket, more = {}) => takeEvent(type, { type, at: new Date().toISOString(), lock, ticket, mode: "exclusive", owner: owner(ticket), ...more }, "");
const ids = (list) => list.map((ticket) => ticket.id).join();

test("a stream of events is read however it is cut", () => {
  const text = "retry: 5\n: hello\n\nid: 7\nevent: granted\ndata: {\"a\":\ndata: 1}\n\nid: 8\r\ndata: x\r\n\r\ndata: cut off";
  for (const size of [1, 2, 3, 1000]) {
    const got = [];
    const feed = sseParser((message) => got.push(message));
    for (let at = 0; at < text.length; at += size) feed(text.slice(at, at + size));
    assert.deepEqual(got.slice(0, 1), [{ type: "granted", id: "7", data: '{"a":\n1}' }], `pieces of ${size}`);
  }
});

test("an event changes the line at once, and a hand-over leaves one holder", () => {
  takeLine({ lock: "a", tickets: [held("t1", 5), row("t2")] }, Date.now());
  event("queued", "a", "t3");
  assert.equal(ids(lineOf("a").waiters), "t2,t3");
  event("granted", "a", "t2", { fence: 6, fence_text: "6" });
  assert.equal(ids(lineOf("a").holders), "t2");
  assert.equal(lineOf("a").spans.at(-1).ticket.id, "t1");
});

test("a listing that is older than an event does not bring an ended ticket back", () => {
  const asked = Date.now() - 5;
  takeLine({ lock: "b", tickets: [held("u1", 5), row("u2")] }, asked);
  event("released", "b", "u1", { held_ms: 500 });
  takeLine({ lock: "b", tickets: [held("u1", 5), row("u2")] }, asked);
  assert.equal(ids(lineOf("b").holders), "");
  assert.equal(ids(lineOf("b").waiters), "u2");
});

test("a lock that a whole pass did not show is free, unless an event has touched it since", () => {
  takeLine({ lock: "c", tickets: [held("v1", 5)] }, Date.now());
  dropUnseen(new Set(), Date.now() - 10_000);
  assert.equal(ids(lineOf("c").holders), "v1");
  dropUnseen(new Set(), Date.now() + 10_000);
  assert.equal(ids(lineOf("c").holders), "");
});

test("jeopardy and expiry are judged by what remains of the longest life seen", () => {
  const at = (ms) => takeLine({ lock: "d", tickets: [held("w1", 5, { ends_in_ms: ms })] }, Date.now()).holders[0].state;
  assert.equal(at(10_000), "held");
  assert.equal(at(15_000), "held");
  assert.equal(at(7000), "jeopardy");
  assert.equal(at(3000), "expiring");
  assert.equal(at(15_000), "held");
});

test("the history of a lock becomes spans, and the present stays as it is", () => {
  takeLine({ lock: "e", tickets: [held("x3", 9)] }, Date.now());
  const ago = (ms) => new Date(Date.now() - ms).toISOString();
  const of = (type, ticket, ms, more = {}) => ({ type, at: ago(ms), lock: "e", ticket, mode: "exclusive", owner: owner(ticket), ...more });
  takeHistory("e", { since: ago(60_000), events: [
    of("queued", "x1", 50_000), of("granted", "x1", 40_000, { fence: 7, fence_text: "7" }), of("queued", "x2", 39_000), of("released", "x1", 30_000),
    of("granted", "x2", 30_000, { fence: 8, fence_text: "8" }), of("evicted", "x2", 20_000), of("granted", "x3", 20_000, { fence: 9, fence_text: "9" }),
  ] });
  const line = lineOf("e");
  assert.deepEqual(line.spans.map(({ ticket, how }) => [ticket.id, ticket.fence, how]), [["x1", "7", "released"], ["x2", "8", "evicted"]]);
  assert.equal(ids(line.holders), "x3");
  const lengths = lengthsOf(line, Date.now() - 900_000);
  assert.equal(Math.max(...lengths), 1);
  assert.equal(lengths.at(-1), 0);
});

test("a fence beyond what a number holds is shown exactly", () => {
  takeLine({ lock: "f", tickets: [held("y1", 0, { fence: 18446744073709551615, fence_text: "18446744073709551615" })] }, Date.now());
  assert.equal(num(lineOf("f").holders[0].fence).replace(/\D/g, ""), "18446744073709551615");
});

test("a shared grant without a number is a grant", () => {
  takeLine({ lock: "g", tickets: [row("z1", { mode: "shared", fence: 0, fence_text: "0" }), row("z2", { mode: "shared", fence: 0, fence_text: "0" }), row("z3")] }, Date.now());
  const line = lineOf("g");
  assert.equal(ids(line.holders), "z1,z2");
  assert.equal(line.holders[0].fence, "");
  assert.equal(line.kind, "shared");
});

test("a line of any length fits its rail", () => {
  for (const width of [300, 700, 1100, 1800]) {
    for (const n of [0, 1, 3, 8, 20, 100, 1000, 10_000]) {
      const plan = lineLayout(n, width, false);
      assert.equal(plan.full + plan.slim + plan.bars, n, `${n} in ${width}`);
      assert.ok(plan.full * 160 + plan.slim * 36 <= width + 160, `${n} in ${width}`);
    }
  }
});

test("a thousand waiters become a few hundred bars, and every one of them is in a bar", () => {
  const line = lineOf("h");
  line.waiters = Array.from({ length: 1000 }, (_, i) => ({ id: `q${i}`, kind: "exclusive", entered: i, foreign: i === 500 }));
  const buckets = bucketsOf(unitsOf(line), 7, 400);
  assert.ok(buckets.length < 150, String(buckets.length));
  assert.equal(buckets[0].from, 8);
  assert.equal(buckets.at(-1).to, 1000);
  buckets.slice(1).forEach((bucket, i) => assert.equal(bucket.from, buckets[i].to + 1));
  assert.equal(buckets.filter((bucket) => bucket.foreign).length, 1);
});

test("a cell that is no text is shown in hexadecimal", () => {
  assert.deepEqual(readable(new TextEncoder().encode("主: 1\n")), { text: "主: 1\n", binary: false });
  const { text, binary } = readable(new Uint8Array([0, 255, 65]));
  assert.ok(binary && text.startsWith("0000  00 ff 41 ") && text.endsWith("··A"), text);
});

test("the model keeps a bounded number of events", () => {
  for (let i = 0; i < 2000; i++) event("queued", "i", `many${i}`);
  assert.ok(model.events.length <= 700, String(model.events.length));
});
