// Written by scripts/view_types.py from the dataclasses in widgets/*.py: `make widgets`. Do not edit.
import type { Json } from "./protocol.ts";

export type Section = Facts | Notes | Table | Code | Chart;

export const SCALES = {
  nanoseconds: [["ns", 1.0], ["µs", 1000.0], ["ms", 1000000.0], ["s", 1000000000.0]],
  bytes: [["B", 1.0], ["KiB", 1024.0], ["MiB", 1048576.0], ["GiB", 1073741824.0], ["TiB", 1099511627776.0]],
  amount: [["", 1.0], ["k", 1000.0], ["M", 1000000.0], ["G", 1000000000.0], ["T", 1000000000000.0]],
} as const;

export interface Charts {
  sharding: Sharding;
  peaks: Peaks;
}

export interface Kinds {
}

export interface Page {
  title: string;
  facts: string[];
  warnings: string[];
  sections: (Facts | Notes | Table | Code | Chart)[];
  actions: Action[];
  filter: string | null;
  filters: string;
}

export interface Row {
  id: number | string;
  words: string;
  detail: (Facts | Notes | Table | Code | Chart)[];
}

export interface Sharding {
  heads: string[];
  sides: string[];
  parts: number[][][];
  labels: string[][];
  colors: string[][];
}

export interface Peaks {
  cells: CellRow[];
}

export interface File {
  name: string;
  text: string;
  type: "file";
}

export interface Facts {
  facts: Fact[];
  title: string;
  type: "facts";
}

export interface Notes {
  notes: Note[];
  title: string;
  type: "notes";
}

export interface Table {
  key: string;
  columns: Column[];
  rows: Row[];
  title: string;
  name: string;
  rest: string;
  empty: string;
  numbered: boolean;
  selects: boolean;
  actions: Action[];
  type: "table";
}

export interface Code {
  key: string;
  columns: Column[];
  rows: Row[];
  title: string;
  name: string;
  heat: string;
  type: "code";
}

export interface Chart {
  kind: string;
  data: Json;
  title: string;
  type: "chart";
}

export interface Action {
  label: string;
  ask: string;
  arguments: Record<string, string | number>;
  when: string;
}

export interface CellRow {
  id: number | string;
  words: string;
  detail: (Facts | Notes | Table | Code | Chart)[];
  cell: string;
  seconds: number;
  before: number;
  peak: number;
  after: number;
}

export interface Fact {
  name: string;
  lines: string[];
  code: boolean;
}

export interface Note {
  text: string;
  more: string[];
}

export interface Column {
  label: string;
  unit: "text" | "code" | "number" | "count" | "seconds" | "nanoseconds" | "bytes" | "amount" | "share";
  says: string;
  wide: boolean;
  mark: string;
  key: string;
}
