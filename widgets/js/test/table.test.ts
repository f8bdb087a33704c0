import assert from "node:assert/strict";
import { test } from "node:test";
import { filtered, sorted } from "../src/table.tsx";

const rows = [
  { name: "conv2", size: 30 },
  { name: "conv10", size: null },
  { name: "Matmul", size: 4 },
  { name: "add", size: 30 },
];
const names = (some: readonly { name: string }[]): string[] => some.map((r) => r.name);

test("numbers sort as numbers, unknown ones last both ways, equals in their order", () => {
  assert.deepEqual(names(sorted(rows, (r) => r.size, true)), ["conv2", "add", "Matmul", "conv10"]);
  assert.deepEqual(names(sorted(rows, (r) => r.size, false)), ["Matmul", "conv2", "add", "conv10"]);
});

test("numbers in names count as numbers", () => {
  assert.deepEqual(names(sorted(rows, (r) => r.name, false)), ["add", "conv2", "conv10", "Matmul"]);
});

test("every word must be there, one with a minus must not", () => {
  const words = (r: { name: string }): string => r.name;
  assert.deepEqual(names(filtered(rows, "CONV -10", words)), ["conv2"]);
  assert.deepEqual(names(filtered(rows, " ", words)), names(rows));
  assert.deepEqual(names(filtered(rows, "-", words)), []);
});
