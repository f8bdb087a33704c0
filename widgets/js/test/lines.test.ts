// Lines of code, the attributes of instructions, and graphs that are moved.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ATTRIBUTES, hueOf } from "../src/decorations.ts";
import type { Row } from "../src/generated.ts";
import { fitted, opened, zoomed } from "../src/graph.tsx";
import { coloured, itemsOf } from "../src/lines.tsx";
import { firstOf } from "../src/linked.ts";

const rows = Array.from({ length: 6 }, (_, id) => ({ id, search_text: "", detail: [], opened: false }) as Row);

test("lines without figures are folded where they are", () => {
  const items = itemsOf(rows, (row) => row.id === 2 || row.id === 3);
  assert.deepEqual(items, [{ folded: 2, at: 0 }, 2, 3, { folded: 2, at: 4 }]);
  assert.deepEqual(itemsOf(rows, () => true), [0, 1, 2, 3, 4, 5]);
});

test("code has colours, and a string over several lines has its own in each", () => {
  const lines = coloured('def f():\n    """one\n    two"""\n    return 3');
  assert.equal(lines.length, 4);
  const kinds = lines.map((line) => line.flatMap((part) => (part as { props?: { class: string } }).props?.class ?? []));
  assert.ok(kinds[0]!.includes("code-keyword"));
  assert.deepEqual([kinds[1], kinds[2]], [["code-string"], ["code-string"]]);
  assert.deepEqual(kinds[3], ["code-keyword", "code-number"]);
});

test("attributes fold, and what an instruction computes does not", () => {
  const rest = (line: string): string => line.replace(ATTRIBUTES, "…");
  assert.equal(
    rest('  %a = f32[] add(%b, %c), metadata={op_name="jit(f)/a}b" source_line=3}, backend_config={"n":"7"}'),
    "  %a = f32[] add(%b, %c)…",
  );
  assert.equal(rest('%p = f32[8]{0} parameter(0), sharding={replicated}, metadata={op_name="x"}'), "%p = f32[8]{0} parameter(0)…");
  const kept = "%r = f32[] reduce(%a, %b), dimensions={0,1}, to_apply=%add, sharding={devices=[2]0,1}";
  assert.equal(rest(kept), kept);
});

test("neighbouring lines have colours of their own", () => {
  const hues = Array.from({ length: 12 }, (_, l) => hueOf(l));
  for (const [i, a] of hues.entries()) {
    for (const b of hues.slice(i + 1)) {
      const apart = Math.abs(a - b);
      assert.ok(Math.min(apart, 360 - apart) >= 15, `${a} ${b}`);
    }
  }
  assert.deepEqual(firstOf({ groups: [[3, 1], [2]], links: [1, -1, 0] }), [2, null, 3]);
});

test("a large graph opens at its start, at a size that can be read", () => {
  const to = { width: 800, height: 400 };
  assert.deepEqual(opened(100, 100, to, 50), fitted(100, 100, to));
  const deep = opened(500, 9000, to, 250);
  assert.deepEqual([deep.scale, deep.x, deep.y], [0.8, 200, 0]);
  for (const first of [40, 4000, 15500]) {
    const { scale, x, y } = opened(15516, 128, to, first);
    assert.equal(scale, 0.8);
    const at = x + first * scale;
    assert.ok(at >= 0 && at <= 800 && x <= 0 && x + 15516 * scale >= 800 && y >= 0);
  }
});

test("a graph is fitted into its place, and a point stays under the mouse", () => {
  const wide = fitted(15516, 128, { width: 800, height: 400 });
  assert.ok(wide.scale * 15516 <= 800 + 1e-9);
  assert.equal(fitted(100, 100, { width: 800, height: 400 }).scale, 1);
  const at = { x: 200, y: 90 };
  const before = { x: 10, y: 20, scale: 0.5 };
  const after = zoomed(before, 2, at);
  assert.equal(after.scale, 1);
  for (const axis of ["x", "y"] as const) {
    assert.equal((at[axis] - before[axis]) / before.scale, (at[axis] - after[axis]) / after.scale);
  }
  assert.ok(zoomed(before, 1000, at).scale <= 4);
});
