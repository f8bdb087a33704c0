// What `View.data()` and `View.answer()` give each live form. The docstring of each view in `widgets/` is the reference.

type Maybe<T> = T | null;

// -- kind "hlo" (widgets/hlo.py) ---------------------------------------------------------------------------------

export type Cost = [flops: number, transcendentals: number, bytes: number];

export interface Source {
  file: string;
  title: string;
  cell: Maybe<number>;
  first: number; // the number of its first line
  lines: string[];
}

// An L is an index into `lines`; -1 is no line.
export interface Places {
  sources: Source[];
  lines: [source: number, line: number][];
}

export interface HloData extends Places {
  program: { id: number; name: string; kind: string; part: string; title: string; signature: string[] };
  others: [id: number, title: string][];
  table: { line: number[]; instructions: number[]; flops: number[]; transcendentals: number[]; bytes: number[] };
  total: Cost;
  kinds: [opcode: string, count: number, fused: number, flops: number, transcendentals: number, bytes: number][];
  fusions: [name: string, kind: string, parts: string, lines: number[], flops: number, bytes: number][];
  memory: Maybe<{ arguments: number; outputs: number; alias: number; temporary: number; code: number }>;
  buffers: [index: number, kind: string, size: number, held: [name: string, offset: number, size: number][]][];
  stages: string[];
  stage: string;
  line: number;
  grep: string;
}

export interface StageAnswer extends Places {
  stage: string;
  title: string;
  text: string;
  groups: number[][]; // lists of Ls
  links: number[]; // of each line of `text`, an index into `groups`, or -1
}

export interface GraphAnswer {
  nodes: [id: number, label: string, detail: string, distance: number, flops: number, bytes: number, line: number][];
  edges: [from: number, to: number][];
  cut: boolean;
}

export interface InstructionAnswer {
  name: string;
  opcode: string;
  shape: string;
  path: string[];
  backward: boolean;
  lines: number[];
  stack: [file: string, line: number, name: string][];
  cost: Cost;
  runs: number;
  text: string;
}

// -- kind "diff" (widgets/diff.py), also what the question "diff" to kind "hlo" gives -----------------------------

export interface DiffData {
  stage: string;
  title: string;
  first: { id: number; title: string; text: string; total: Cost };
  second: { id: number; title: string; text: string; total: Cost };
  hunks: [same: number, start: number, stop: number, start2: number, stop2: number][];
  removed: number;
  added: number;
}

// -- kind "profile" (widgets/profile.py); times in nanoseconds ----------------------------------------------------

export interface Time {
  total: number;
  backward: number; // of total
  inferred: number; // of total
  count: number;
  flops: number;
  bytes: number;
}

export interface Branch extends Time {
  name: string;
  own: number;
  children: Branch[];
}

export interface ProfileData {
  title: string;
  repeat: number;
  wall: number;
  device: number;
  busy: number;
  idle: number;
  attributed: number;
  host: { compile: number; waiting: number; transfer: number; dispatch: number; python: number };
  memory: Maybe<{ before: number; peak: number; after: number }>;
  peak: Maybe<{ name: string; flops: number; bandwidth: number }>;
  lines: (Time & {
    id: number;
    file: string;
    cell: Maybe<number>;
    line: number;
    source: string;
    inclusive?: number; // with what the line called
  })[];
  unattributed: Time;
  tree: Branch;
  operators: (Time & { id: number; name: string })[];
  instructions: (Time & {
    id: number;
    program: string;
    number: Maybe<number>;
    name: string;
    opcode: string;
    lines: number[];
  })[];
  events: Events;
  names: string[];
  lanes: { name: string; device: boolean }[];
  runs: [start: number, end: number][];
}

// One entry an event; all of the same length, by lane and start.
export interface Events {
  start: number[];
  duration: number[];
  lane: number[];
  name: number[];
  depth: number[];
  line: number[];
  // Of an event, the row of another table, where the kernel says it.
  operator?: number[];
  module?: number[]; // counts the tree's nodes in the order in which they are written
  instruction?: number[];
}
