import assert from "node:assert/strict";
import { test } from "node:test";
import { barsOf } from "../src/flame.tsx";
import { ticks, written, type Unit } from "../src/format.ts";
import { placed } from "../src/graph.tsx";
import { lanesOf, step } from "../src/timeline.tsx";
import { timesOf } from "../src/views/profile.tsx";
import cases from "./units.json";

// The same cases are read by tests/widgets/test_units.py.
test("numbers are written as the kernel writes them", () => {
  for (const { unit, value, text } of cases) assert.equal(written(value, unit as Unit), text, `${value} ${unit}`);
});

test("lanes have a row for each depth, and lanes without events have none", () => {
  const events = { start: [5, 0, 1], duration: [1, 4, 1], lane: [0, 2, 2], depth: [0, 0, 1], name: [0, 0, 0], category: [0, 0, 0] };
  const lanes = lanesOf(events, [{ name: "a" }, { name: "b" }, { name: "c", device: true }], { from: 0, to: 6 });
  assert.deepEqual(lanes.map((l) => [l.name, l.rows, l.events]), [["a", 1, [0]], ["c", 2, [1, 2]]]);
  assert.ok(lanes[0]!.top < lanes[1]!.top);
});

test("the axis of a profile is that of its runs, and what ran before them is not drawn", () => {
  const columns = { start: [2e9, 14.2e9, 14.5e9], duration: [1e9, 1e8, 2e8], lane: [0, 0, 1], depth: [0, 0, 0], name: [0, 0, 0], category: [0, 0, 0] };
  const rest = { line: [], operator: [], module: [], instruction: [] };
  const { events, whole } = timesOf({ events: { ...columns, ...rest }, runs: [[14e9, 14.4e9], [14.4e9, 15e9]] });
  assert.deepEqual(whole, { from: 0, to: 1 });
  assert.deepEqual(lanesOf(events, [{ name: "a" }, { name: "b" }], whole).map((lane) => lane.events), [[1], [2]]);
});

test("ticks are 1, 2 or 5 times a power of ten", () => {
  assert.deepEqual([step(10, 10), step(0.012, 10), step(7, 2)], [1, 0.002, 5]);
});

test("the labels of an axis differ, however near it is seen", () => {
  for (const from of [0, 1.5, 12.345678, 3e-5])
    for (let length = 100; length > 2e-9; length /= 3.7) {
      const every = Math.max(step(length, 8), 1e-9);
      const found = ticks(from, from + length, every);
      assert.equal(new Set(found.map(({ text }) => text)).size, found.length, `${from} ${length}`);
      assert.ok(found.length > 1);
      for (const { at } of found) assert.ok(at >= from - 1e-9 * every && at <= from + length);
    }
  assert.deepEqual(ticks(0, 0.01, 0.005).map(({ text }) => text), ["0", "5 ms", "10 ms"]);
});

test("a child lies within its parent, the longest first", () => {
  const tree = {
    name: "step",
    seconds: 10,
    backward: 0,
    children: [
      { name: "head", seconds: 2, backward: 0, children: [] },
      { name: "body", seconds: 5, backward: 0, children: [{ name: "attention", seconds: 5, backward: 0, children: [] }] },
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
