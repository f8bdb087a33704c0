import assert from "node:assert/strict";
import { test } from "node:test";
import { instructionOn, instructionsOf, linksOf } from "../src/linked.ts";
import { rowsOf } from "../src/views/diff.tsx";
import { flat, linkedTo, tablesOf, rowsOfEvents, within } from "../src/views/profile.tsx";
import type { Branch, ProfileData } from "../src/generated.ts";

test("lines of a text and lines of the user's find each other", () => {
  const links = linksOf({ groups: [[0], [0, 2]], links: [-1, 0, 1, 0] });
  assert.deepEqual([0, 1, 2, 9].map(links.of), [[], [0], [0, 2], []]);
  assert.deepEqual(links.to(new Set([0])), [1, 2, 3]);
  assert.deepEqual(links.to(new Set([2])), [2]);
  assert.deepEqual(links.to(new Set()), []);
});

test("an instruction is found by its name, the root too, and a heading is none", () => {
  assert.equal(instructionOn("  ROOT %dot.1 = f32[8]{0} dot(%a, %b)"), "dot.1");
  assert.equal(instructionOn("%region_0.2 (a: f32[]) -> f32[] {"), null);
  assert.deepEqual([...instructionsOf("ENTRY %m {\n  %a = f32[] parameter(0)\n}")], [["a", 1]]);
});

test("a diff leaves out what is the same, but for some lines around each difference", () => {
  const hunks: [number, number, number, number, number][] = [[1, 0, 20, 0, 20], [0, 20, 21, 20, 22], [1, 21, 23, 22, 24]];
  const rows = rowsOf(hunks, new Set());
  assert.deepEqual(rows[0], { hunk: 0, hidden: 17 });
  assert.deepEqual(rows.slice(1).map((r) => "left" in r && [r.left, r.right, r.same]), [
    [17, 17, true], [18, 18, true], [19, 19, true], [20, 20, false], [null, 21, false], [21, 22, true], [22, 23, true],
  ]);
  assert.equal(rowsOf(hunks, new Set([0])).length, 20 + 2 + 2);
});

const time = { total: 1, backward: 0, inferred: 0, count: 1, flops: 0, bytes: 0, self_time: 0 };
const branch = (name: string, ...children: Branch[]): Branch => ({ ...time, name, children });
const data = {
  lines: [5, 6].map((line, id) => ({ ...time, id, file: "f", cell: 1, line, source: `line ${line}` })),
  tree: branch("all", branch("net", branch("a"), branch("b")), branch("network")),
  operators: [{ ...time, id: 0, name: "mm" }],
  instructions: [{ ...time, id: 0, program: "p", number: 1, name: "dot", opcode: "dot", lines: [1] }],
  names: ["host", "dot"],
  events: { start: [0, 1, 2], duration: [1, 1, 1], lane: [0, 0, 0], depth: [0, 0, 0], name: [0, 1, 1],
    line: [-1, 0, 1], module: [-1, 1, 3], operator: [-1, 0, 0], instruction: [-1, 0, 0] },
} as unknown as ProfileData;

test("a module's paths, and what lies within it, not what begins with its name", () => {
  assert.deepEqual(flat(data.tree).map((n) => n.path), ["net", "net/a", "net/b", "network"]);
  assert.deepEqual([...within({ axis: "module", row: 0 }, tablesOf(data))], [0, 1, 2]);
});

test("tables are linked through the events", () => {
  const of = rowsOfEvents(data);
  const linked = linkedTo({ axis: "module", row: 0 }, of, tablesOf(data));
  assert.deepEqual([...linked.line], [0]);
  assert.deepEqual([...linked.instruction], [0]);
  const back = linkedTo({ axis: "instruction", row: 0 }, of, tablesOf(data));
  assert.deepEqual([...back.line].sort(), [0, 1]);
  assert.deepEqual([...back.module].sort(), [1, 3]);
  assert.deepEqual([...back.instruction], [0]);
});
