// The sections of a page whose components use no hooks, read without a browser.
import assert from "node:assert/strict";
import { test } from "node:test";
import { FactsView, NotesView, shown } from "../src/sections.tsx";
import type { Column, Row } from "../src/generated.ts";

// The text of what a component returned, with a space between elements.
function textOf(node: unknown): string {
  if (Array.isArray(node)) return node.map(textOf).join(" ");
  if (node === null || typeof node !== "object") return node === null || node === undefined ? "" : String(node);
  const { type, props } = node as { type: unknown; props: { children?: unknown } };
  return textOf(typeof type === "function" ? type(props) : props.children);
}
const words = (node: unknown): string => textOf(node).split(/\s+/).filter(Boolean).join(" ");

test("every fact and every note is drawn", () => {
  const facts = [{ name: "Origin", lines: ["inferred: XLA", "recorded none"], code: false }, { name: "Runs", lines: ["3"], code: true }];
  assert.equal(words(FactsView({ facts })), "Origin inferred: XLA recorded none Runs 3");
  assert.equal(words(NotesView({ notes: [{ text: "retraced", more: ["pad it"] }] })), "retraced pad it");
});

test("a value that is inferred is marked", () => {
  const column: Column = { key: "time", label: "time", unit: "nanoseconds", help: "", wide: false, wider: false, mark: "guess" };
  const row = (guess: boolean): Row => ({ id: 1, search_text: "", detail: [], opened: false, time: 1500, guess }) as Row;
  assert.equal(words(shown(row(true), column)), "~ 1.50 µs");
  assert.equal(words(shown(row(false), column)), "1.50 µs");
});
