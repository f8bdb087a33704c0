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
  hlo: HloData;
  diff: DiffData;
  profile: ProfileData;
}

export interface Page {
  title: string;
  facts: string[];
  warnings: string[];
  sections: (Facts | Notes | Table | Code | Chart)[];
  actions: Action[];
  filter: string | null;
  filters: string;
  finding: string;
}

export interface Row {
  id: number | string;
  search_text: string;
  detail: (Facts | Notes | Table | Code | Chart)[];
  opened: boolean;
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

export interface HloData {
  sources: SourceText[];
  lines: SourceLine[];
  page: Page;
  name: string;
  others: Other[];
  stages: string[];
  stage: string;
  line: number;
  grep: string;
}

export interface DiffData {
  stage: string;
  title: string;
  summary: string;
  first: DiffText;
  second: DiffText;
  hunks: HunkLines[];
}

export interface ProfileData {
  heading: Page;
  device: number;
  phases: Phases[];
  peak: Peak | null;
  lines: LineTime[];
  unattributed: Time;
  tree: Branch;
  operators: OperatorTime[];
  instructions: InstructionTime[];
  events: EventColumns;
  names: string[];
  lanes: Lane[];
  runs: [number, number][];
  categories: Category[];
  omitted: number;
}

export interface File {
  name: string;
  text: string;
  type: "file";
}

export interface SourceLines {
  sources: SourceText[];
  lines: SourceLine[];
}

export interface StageAnswer {
  sources: SourceText[];
  lines: SourceLine[];
  stage: string;
  title: string;
  text: string;
  groups: number[][];
  links: number[];
  inferred: number[];
}

export interface GraphAnswer {
  nodes: GraphNode[];
  edges: GraphEdge[];
  cut: boolean;
}

export interface InstructionAnswer {
  name: string;
  lines: number[];
  facts: Facts;
}

export interface CostRow {
  id: number | string;
  search_text: string;
  detail: (Facts | Notes | Table | Code | Chart)[];
  opened: boolean;
  line: string;
  instructions: number;
  flops: number;
  share: number | null;
  transcendentals: number;
  bytes: number;
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
  omitted: string;
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
  every: boolean;
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
  search_text: string;
  detail: (Facts | Notes | Table | Code | Chart)[];
  opened: boolean;
  cell: string;
  seconds: number;
  before: number;
  peak: number;
  after: number;
}

export interface SourceText {
  file: string;
  title: string;
  cell: number | null;
  first: number;
  lines: string[];
}

export type SourceLine = [source: number, line: number];

export type Other = [id: number, title: string];

export interface DiffText {
  id: number;
  title: string;
  text: string;
}

export type HunkLines = [same: number, start: number, stop: number, start_second: number, stop_second: number];

export interface Phases {
  who: string;
  parts: Phase[];
}

export interface Peak {
  name: string;
  flops: number;
  bandwidth: number;
}

export interface LineTime {
  total: number;
  backward: number;
  inferred: number;
  count: number;
  flops: number;
  bytes: number;
  id: number;
  file: string;
  cell: number | null;
  line: number;
  source: string;
  inclusive: number;
}

export interface Time {
  total: number;
  backward: number;
  inferred: number;
  count: number;
  flops: number;
  bytes: number;
}

export interface Branch {
  total: number;
  backward: number;
  inferred: number;
  count: number;
  flops: number;
  bytes: number;
  name: string;
  self_time: number;
  children: Branch[];
}

export interface OperatorTime {
  total: number;
  backward: number;
  inferred: number;
  count: number;
  flops: number;
  bytes: number;
  id: number;
  name: string;
}

export interface InstructionTime {
  total: number;
  backward: number;
  inferred: number;
  count: number;
  flops: number;
  bytes: number;
  id: number;
  program: string;
  number: number | null;
  name: string;
  opcode: string;
  lines: number[];
}

export interface EventColumns {
  start: number[];
  duration: number[];
  lane: number[];
  name: number[];
  depth: number[];
  line: number[];
  operator: number[];
  module: number[];
  instruction: number[];
  category: number[];
}

export interface Lane {
  name: string;
  device: boolean;
}

export interface Category {
  name: string;
  colour: string;
}

export type GraphNode = [id: number, label: string, detail: string, distance: number, flops: number, bytes: number, line: number, number: number];

export type GraphEdge = [start: number, end: number];

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
  help: string;
  wide: boolean;
  wider: boolean;
  mark: string;
  key: string;
}

export interface Phase {
  name: string;
  time: number;
  note: string;
  colour: string;
}
