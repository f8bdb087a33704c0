// The same cases are read by tests/widgets/test_protocol.py: there `old` and `new` give `changes`, here the way back.
import assert from "node:assert/strict";
import { test } from "node:test";
import read from "./patches.json";
import { applied, type Change, type Data } from "../src/protocol.ts";

const cases = read as unknown as { title: string; old: Data; new: Data; changes: Record<string, Change> }[];

for (const { title, old, new: next, changes } of cases) {
  test(`patch: ${title}`, () => {
    const before = structuredClone(old);
    assert.deepEqual(applied(old, changes), next);
    assert.deepEqual(old, before, "the state before is left as it was");
  });
}

test("rows that did not change stay the same objects", () => {
  const rows = [{ id: 1 }, { id: 2 }];
  const next = applied({ rows }, { rows: { $rows: [{ id: 3 }], $order: [2, 3] } });
  assert.equal((next["rows"] as Data[])[0], rows[1]);
});
