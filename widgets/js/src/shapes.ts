// What `View.data()` and `View.answer()` give each live form. The docstring of each view in `widgets/` says the same;
// times are seconds, sizes bytes, lines are counted from 1 as a reader counts them; what is not known is null.
import type { Branch } from "./flame.tsx";
import type { Data } from "./protocol.ts";
import type { Events } from "./timeline.tsx";

type Maybe<T> = T | null;

// -- kind "cache" ---------------------------------------------------------------------------------------------

export interface Program {
  id: number | string;
  parent: Maybe<number | string>; // the row that it is folded into (eager operators)
  name: string;
  kind: string;
  place: Maybe<string>; // "cell [3], line 2"
  calls: Maybe<number>;
  hits: Maybe<number>;
  traces: Maybe<number>;
  trace: Maybe<number>;
  lowering: Maybe<number>;
  xla: Maybe<number>;
  code: Maybe<number>;
  memory: Maybe<number>;
  flops: Maybe<number>;
  signature: string[];
  persistent: Maybe<boolean>;
  reason: Maybe<string>; // why it was traced again
  advice: Maybe<string>; // how to avoid it
  alive: boolean;
  kept: boolean;
}

export interface Total {
  id: string;
  name: string; // the call site, or the cell
  programs: number;
  seconds: number;
}

// Asks: clear {id: null for all}, keep {id}, details {id} -> {code, memory, flops}
export interface CacheData {
  rows: Program[];
  places: Total[];
  cells: Total[];
}

// -- kind "hlo" -----------------------------------------------------------------------------------------------

export interface Source {
  name: string; // "cell [3]", or a file
  first: number; // the number of its first line
  text: string;
}

export interface Stage {
  stage: "jaxpr" | "stablehlo" | "hlo";
  text: string;
  // Links as pairs: line `line[i]` (from 0) of `text` comes from `places[place[i]]`.
  line: number[];
  place: number[];
  instruction?: Maybe<number>[]; // of each line of optimized HLO
}

export interface GraphAnswer {
  nodes: { id: string; label: string; says?: string; weight?: number; line?: Maybe<number> }[];
  edges: [string, string][];
}

// Asks: neighbourhood {instruction}, scopes {scope} -> GraphAnswer; diff {other, stage} -> DiffAnswer
export interface HloData {
  title: string;
  facts: [string, string][]; // name and value, for the summary
  sources: Source[];
  places: [number, number][]; // index into sources, line as that file counts
  stages: Stage[];
  lines: { id: string; place: number; instructions: number; flops: Maybe<number>; bytes: Maybe<number> }[];
  kinds: { id: string; opcode: string; count: number; flops: Maybe<number>; bytes: Maybe<number> }[];
  fusions: { id: string; name: string; line: Maybe<number>; inner: string[]; flops: Maybe<number>; bytes: Maybe<number> }[];
  buffers: { id: string; name: string; bytes: number }[];
  others: { id: number | string; name: string }[]; // programs to compare with
}

export interface DiffAnswer {
  left: string;
  right: string;
  names: [string, string];
}

// -- kind "profile" -------------------------------------------------------------------------------------------

export interface Row {
  id: string;
  name: string;
  seconds: number; // of one run
  share: number; // 0 to 1 of the device's total
  count: Maybe<number>;
  flops: Maybe<number>;
  bytes: Maybe<number>;
  inferred: boolean; // split by cost, not measured
  forward?: Maybe<number>; // of `seconds`
  backward?: Maybe<number>;
  place?: Maybe<string>; // for `lines`: "cell [3], line 2"; for the others where known
  source?: Maybe<string>; // the line's own text
  hlo?: Maybe<string>; // the program's number, for %jax hlo
}

export interface ProfileData {
  title: string;
  facts: [string, string][];
  phases: { id: string; name: string; seconds: number }[]; // compile, dispatch, transfer, wait, idle, device
  lanes: { name: string; device: boolean }[];
  names: string[];
  events: Events & { of_line?: number[]; of_module?: number[]; of_operator?: number[] }; // indices into the tables, or -1
  lines: Row[];
  modules: Row[];
  operators: Row[];
  instructions: Row[];
  flame: Branch;
  roofline: Maybe<{ flops_per_byte: number; flops_per_second: number; peak_flops: number; peak_bytes: number }>;
}

// -- kind "lines" ---------------------------------------------------------------------------------------------

export interface LinesData {
  title: string;
  facts: [string, string][];
  sources: Source[];
  rows: (Row & { file: number; line: number })[]; // index into sources, and the line there
}

// -- kind "memory" --------------------------------------------------------------------------------------------

// Asks: why {id} -> string[]: what keeps an array alive, a path a line
export interface MemoryData {
  now: number;
  peak: number;
  history: { at: number[]; bytes: number[] };
  arrays: { id: string | number; name: string; bytes: number; dtype: string; shape: string; place: Maybe<string> }[];
  places: { id: string; name: string; bytes: number; count: number }[];
  programs: { id: string | number; name: string; arguments: number; outputs: number; temporary: number; code: number }[];
}

// -- kind "table" ---------------------------------------------------------------------------------------------

export interface TableData extends Data {
  title: string;
  columns: { key: string; label: string; kind?: "text" | "count" | "seconds" | "bytes" | "flops" | "share" }[];
  rows: (Data & { id: string | number })[];
}
