import assert from "node:assert/strict";
import { test } from "node:test";
import { barsOf } from "../src/flame.tsx";
import { bytes, count, flops, seconds, share } from "../src/format.ts";
import { placed } from "../src/graph.tsx";
import { lanesOf, step } from "../src/timeline.tsx";

test("numbers for a reader", () => {
  assert.deepEqual([0, 1023, 1536, 3 * 2 ** 30, null].map(bytes), ["0 B", "1023 B", "1.5 KiB", "3.0 GiB", ""]);
  assert.deepEqual([0, 5e-9, 4.2e-6, 0.00315, 0.25, 1.5, 90, 600].map(seconds), [
    "0", "5 ns", "4.2 µs", "3.15 ms", "250 ms", "1.50 s", "90.0 s", "10.0 min",
  ]);
  assert.deepEqual([1234567, undefined].map(count), ["1,234,567", ""]);
  assert.deepEqual([999, 2.5e9].map(flops), ["999", "2.5 G"]);
  assert.deepEqual([0, 0.034, 0.5].map(share), ["0%", "3.4%", "50%"]);
});

test("lanes have a row for each depth, and lanes without events have none", () => {
  const events = { start: [5, 0, 1], duration: [1, 4, 1], lane: [0, 2, 2], depth: [0, 0, 1], name: [0, 0, 0] };
  const lanes = lanesOf(events, [{ name: "a" }, { name: "b" }, { name: "c", device: true }]);
  assert.deepEqual(lanes.map((l) => [l.name, l.rows, l.events]), [["a", 1, [0]], ["c", 2, [1, 2]]]);
  assert.ok(lanes[0]!.top < lanes[1]!.top);
});

test("ticks are 1, 2 or 5 times a power of ten", () => {
  assert.deepEqual([step(10, 10), step(0.012, 10), step(7, 2)], [1, 0.002, 5]);
});

test("a child lies within its parent, the longest first", () => {
  const tree = {
    name: "step",
    seconds: 10,
    children: [
      { name: "head", seconds: 2, children: [] },
      { name: "body", seconds: 5, children: [{ name: "attention", seconds: 5, children: [] }] },
    ],
  };
  assert.deepEqual(
    barsOf(tree, "").map((b) => [b.path, b.left, b.width, b.depth]),
    [["", 0, 1, 0], ["body", 0, 0.5, 1], ["body/attention", 0, 0.5, 2], ["head", 0.5, 0.2, 1]],
  );
});

test("a graph is laid out from operands down to users, unknown ends left out", () => {
  const nodes = [{ id: "a", label: "a" }, { id: "b", label: "b" }];
  const graph = placed(nodes, [{ from: "a", to: "b" }, { from: "gone", to: "b" }]);
  const y = (id: string): number => (graph.node(id) as { y: number }).y;
  assert.ok(y("a") < y("b"));
  assert.equal(graph.edges().length, 1);
});
