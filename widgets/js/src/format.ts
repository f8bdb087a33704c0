// Numbers for a reader. The units and their steps come from `widgets/units.py`; `test/units.json` has cases for both sides.
import { SCALES, type Column } from "./generated.ts";
import type { Json } from "./protocol.ts";

export type Unit = Column["unit"];
export type Maybe<T> = T | null | undefined;

// An unknown value is written as "".
export function written(value: Maybe<Json>, unit: Unit): string {
  if (value == null) return "";
  if (typeof value !== "number" || unit === "text" || unit === "code" || unit === "number") return String(value);
  if (unit === "count") return Math.floor(value + 0.5).toLocaleString("en-US");
  if (unit === "share") return `${(100 * value).toFixed(1)} %`;
  return unit === "seconds" ? scaled(value * 1e9, "nanoseconds") : scaled(value, unit);
}

// Three significant digits; the smallest unit has no decimals.
function scaled(value: number, scale: keyof typeof SCALES): string {
  if (value === 0) return "0";
  const steps: readonly (readonly [string, number])[] = SCALES[scale];
  const [unit, step] = steps.filter(([, start]) => Math.abs(value) >= start).at(-1) ?? steps[0]!;
  const size = value / step;
  const digits = unit === steps[0]![0] || Math.abs(size) >= 99.95 ? 0 : Math.abs(size) >= 9.995 ? 1 : 2;
  return `${size.toFixed(digits)} ${unit}`.trimEnd();
}

const writer = (unit: Unit) => (value: Maybe<number>): string => written(value, unit);

export const count = writer("count");
export const bytes = writer("bytes");
export const amount = writer("amount");
export const seconds = writer("seconds");
export const share = writer("share");

// The labels of an axis: times that are `every` apart, in one unit, with as many decimals as tell them apart.
export function ticks(from: number, to: number, every: number): { at: number; text: string }[] {
  const steps = SCALES.nanoseconds;
  const most = Math.max(Math.abs(from), Math.abs(to), every) * 1e9;
  const [unit, size] = steps.filter(([, start]) => most >= start).at(-1) ?? steps[0]!;
  const apart = (every * 1e9) / size;
  const decimals = Math.max(0, Math.ceil(-Math.log10(apart) - 1e-9));
  const found = [];
  for (let n = Math.ceil(from / every - 1e-9); n * every <= to; n++) {
    found.push({ at: n * every, text: n === 0 ? "0" : `${(n * apart).toFixed(decimals)} ${unit}` });
  }
  return found;
}
