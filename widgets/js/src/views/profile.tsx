// `%%jax profile`: a timeline, and tables by line, module, operator and instruction. They are linked through the events:
// a selection in one is marked in the others.
import { useMemo, useState } from "preact/hooks";
import { Flame, type Branch as Cut } from "../flame.tsx";
import { count, seconds, share } from "../format.ts";
import type { ViewProps } from "../frame.tsx";
import { useKept } from "../kept.ts";
import { Act, download, Filter, Tabs } from "../parts.tsx";
import type { Branch, File, ProfileData, Time } from "../generated.ts";
import { Roofline } from "../roofline.tsx";
import { Heading } from "../sections.tsx";
import { Table, type Column } from "../table.tsx";
import { Timeline, type Span } from "../timeline.tsx";

const AXES = ["line", "module", "operator", "instruction"] as const;
export type Axis = (typeof AXES)[number];

// A row of any of the tables. Its index in the table is its number.
export interface Row extends Time {
  name: string;
  says: string; // smaller, below the name
  lines: readonly number[]; // rows of the table of lines
  inclusive?: number | null | undefined; // of a line, including the code that it called
}

const RUNS = 1e9; // nanoseconds of a second
const IDLE = "Nothing ran on the device.";

export const place = (line: { file: string; cell: number | null; line: number }): string =>
  line.cell === null ? `${line.file.split("/").pop() ?? line.file}:${line.line}` : `cell [${line.cell}], line ${line.line}`;

// The events in seconds since the first run began, and the span of all runs.
export function timesOf({ events, runs }: Pick<ProfileData, "events" | "runs">) {
  const zero = runs[0]?.[0] ?? 0;
  const ends = runs.length ? [runs.at(-1)![1]] : events.start.map((start, i) => start + events.duration[i]!);
  return {
    events: {
      ...events,
      start: events.start.map((t) => (t - zero) / RUNS),
      duration: events.duration.map((t) => t / RUNS),
    },
    whole: { from: 0, to: (ends.reduce((a, b) => Math.max(a, b), zero) - zero) / RUNS || 1e-6 },
  };
}

// The tree's nodes in the order of `tree`, without the root, each with its path.
export function flat(tree: Branch): (Branch & { path: string; depth: number })[] {
  const found: (Branch & { path: string; depth: number })[] = [];
  const walk = (node: Branch, path: string, depth: number): void => {
    for (const child of node.children) {
      const own = path ? `${path}/${child.name}` : child.name;
      found.push({ ...child, path: own, depth });
      walk(child, own, depth + 1);
    }
  };
  walk(tree, "", 0);
  return found;
}

export function tablesOf(data: ProfileData): Record<Axis, Row[]> {
  return {
    line: data.lines.map((l, i) => ({ ...l, name: l.source.trim() || place(l), says: place(l), lines: [i] })),
    module: flat(data.tree).map((n) => ({ ...n, name: n.path, says: "", lines: [] })),
    operator: data.operators.map((o) => ({ ...o, says: "", lines: [] })),
    instruction: data.instructions.map((n) => ({
      ...n,
      says: `${n.opcode} of ${n.program}${n.number === null ? "" : ` (%jax hlo ${n.number})`}`,
    })),
  };
}

// For each event, its row in each table (-1: none), as far as the kernel says.
export function rowsOfEvents(data: ProfileData): Partial<Record<Axis, readonly number[]>> {
  const { events, names, instructions } = data;
  const named = new Map<string, number>();
  instructions.forEach((row, i) => named.set(row.name, named.has(row.name) ? -1 : i)); // two programs may share a name
  return {
    line: events.line,
    module: events.module,
    operator: events.operator,
    instruction: events.instruction ?? events.name.map((name) => named.get(names[name]!) ?? -1),
  };
}

export interface Chosen {
  axis: Axis;
  row: number;
}

// The row that is chosen; of a module, those of the modules within it too.
export function within(chosen: Chosen, tables: Record<Axis, readonly Row[]>): Set<number> {
  const rows = new Set([chosen.row]);
  const path = tables.module[chosen.row]?.name;
  if (chosen.axis === "module") tables.module.forEach((row, i) => row.name.startsWith(`${path}/`) && rows.add(i));
  return rows;
}

// The rows of each table that belong to the same events (or the same line) as the selection.
export function linkedTo(
  chosen: Chosen,
  of: Partial<Record<Axis, readonly number[]>>,
  tables: Record<Axis, readonly Row[]>,
): Record<Axis, Set<number>> {
  const own = of[chosen.axis];
  const rows = within(chosen, tables);
  const found = Object.fromEntries(AXES.map((axis) => [axis, new Set<number>()])) as Record<Axis, Set<number>>;
  own?.forEach((row, event) => {
    if (!rows.has(row)) return;
    for (const axis of AXES) {
      const other = of[axis]?.[event] ?? -1;
      if (other >= 0) found[axis].add(other);
    }
  });
  if (chosen.axis === "instruction") for (const line of tables.instruction[chosen.row]?.lines ?? []) found.line.add(line);
  if (chosen.axis === "line") {
    tables.instruction.forEach((row, i) => row.lines.includes(chosen.row) && found.instruction.add(i));
  }
  found[chosen.axis].clear();
  found[chosen.axis].add(chosen.row);
  return found;
}

export const columns = <R extends Row>(first: string, whole: number): Column<R>[] => [
  {
    key: "name",
    label: first,
    value: (r) => r.name,
    draw: (r) => (
      <>
        <span class="mono">{r.name}</span>
        {r.says && <div class="dim">{r.says}</div>}
      </>
    ),
  },
  {
    key: "seconds",
    label: "time",
    kind: "seconds",
    value: (r) => r.total / RUNS,
    draw: (r) => r.total > 0 && (
      <span title={r.inferred ? `${seconds(r.inferred / RUNS)} of it inferred: a fusion's time, split by the cost of what is fused` : "measured"}>
        {r.inferred > 0.05 * r.total && "~"}
        {seconds(r.total / RUNS)}
      </span>
    ),
  },
  {
    key: "share",
    label: "share",
    kind: "share",
    value: (r) => r.total / (whole || 1),
    draw: (r) => r.total > 0 && (
      <>
        <span class="share wide" aria-hidden="true" style={{ width: `${Math.max((r.total / (whole || 1)) * 60, 1)}px` }} />{" "}
        {share(r.total / (whole || 1))}
      </>
    ),
  },
  {
    key: "inclusive",
    label: "inclusive",
    kind: "seconds",
    says: "the line and all it called",
    value: (r) => (r.inclusive == null ? null : r.inclusive / RUNS),
  },
  { key: "forward", label: "forward", kind: "seconds", wide: true, value: (r) => (r.total - r.backward) / RUNS || null },
  { key: "backward", label: "backward", kind: "seconds", value: (r) => r.backward / RUNS || null },
  { key: "count", label: "runs", kind: "count", wide: true, value: (r) => Math.round(r.count) || null },
  { key: "flops", label: "FLOPs", kind: "amount", wide: true, value: (r) => r.flops || null },
  { key: "bytes", label: "bytes", kind: "bytes", wide: true, value: (r) => r.bytes || null },
];

const LABELS: Record<Axis, string> = { line: "Line", module: "Module", operator: "Operator", instruction: "Instruction" };

export function ProfileView({ data, client, colours }: ViewProps<ProfileData>) {
  const [tab, setTab] = useKept<string>(client, "tab", "line");
  const [filter, setFilter] = useKept(client, "filter", "");
  const [chosen, setChosen] = useKept<Chosen | null>(client, "chosen", null);
  const [event, setEvent] = useKept<number | null>(client, "event", null);
  const [span, setSpan] = useKept<Span | null>(client, "span", null);
  const tables = useMemo(() => tablesOf(data), [data]);
  const of = useMemo(() => rowsOfEvents(data), [data]);
  const { events, whole } = useMemo(() => timesOf(data), [data]);
  const linked = useMemo(() => chosen && linkedTo(chosen, of, tables), [chosen, of, tables]);
  const marked = useMemo(() => {
    if (!chosen || !linked) return undefined;
    const own = of[chosen.axis];
    const rows = within(chosen, tables);
    if (own) return (i: number) => rows.has(own[i]!);
    return undefined; // the kernel does not say which events these are
  }, [chosen, linked, of, tables]);
  // For a selected time, the rows whose events are in it.
  const inSight = useMemo(() => {
    if (!span) return null;
    const found = new Map<Axis, Set<number>>(AXES.filter((axis) => of[axis]).map((axis) => [axis, new Set()]));
    events.start.forEach((start, i) => {
      if (start + events.duration[i]! < span.from || start > span.to) return;
      for (const [axis, rows] of found) if ((of[axis]![i] ?? -1) >= 0) rows.add(of[axis]![i]!);
    });
    return found;
  }, [span, events, of]);

  const select = (i: number | null): void => {
    setEvent(i);
    const axis = AXES.find((a) => a === tab && of[a]) ?? "line";
    const row = i === null ? -1 : (of[axis]?.[i] ?? -1);
    setChosen(row < 0 ? null : { axis, row });
  };
  const table = (axis: Axis) => {
    const all = tables[axis];
    const inSpan = inSight?.get(axis);
    const numbers = all.map((_, i) => i).filter((i) => !inSpan || inSpan.has(i));
    const shown = columns<Row & { at: number }>(axis, data.device).filter(
      (c) => c.key === "name" || all.some((r) => c.value({ ...r, at: 0 })),
    );
    return (
      <>
        <Table
          client={client}
          name={`Time by ${axis}`}
          empty={IDLE}
          rows={numbers.map((at) => ({ ...all[at]!, at }))}
          id={(r) => r.at}
          filter={filter}
          words={(r) => r.says}
          sort={{ key: "seconds", down: true }}
          selected={(r) => linked?.[axis].has(r.at) ?? false}
          onSelect={(r) => setChosen(chosen?.axis === axis && chosen.row === r.at ? null : { axis, row: r.at })}
          columns={shown}
        />
        {axis === "line" && data.unattributed.total > 0 && (
          <p class="dim">
            {seconds(data.unattributed.total / RUNS)} ({share(data.unattributed.total / (data.device || 1))}) belong to no line.
          </p>
        )}
      </>
    );
  };
  const told = event === null ? [] : AXES.flatMap((axis) => tables[axis][of[axis]?.[event] ?? -1]?.name ?? []);
  return (
    <>
      <Heading page={data.heading}>
        <span class="space" />
        <Act run={() => save(client, "perfetto")}>Perfetto trace</Act>
        <Act run={() => save(client, "page")}>HTML page</Act>
      </Heading>
      <Phases data={data} />
      <Timeline
        events={events}
        lanes={data.lanes}
        names={data.names}
        categories={data.categories}
        marked={marked}
        selected={event}
        onSelect={select}
        span={span}
        onSpan={setSpan}
        whole={whole}
        label="Timeline"
        theme={colours}
      />
      {data.omitted > 0 && (
        <p class="dim">
          The {count(data.events.start.length)} longest of {count(data.events.start.length + data.omitted)} events are drawn; the
          Perfetto trace has all.
        </p>
      )}
      {told.length > 0 && <p class="dim mono">{told.join(" · ")}</p>}
      <Tabs
        label="Time by"
        beside={
          <>
            <span class="space" />
            {(chosen || span) && (
              <button type="button" onClick={() => (setChosen(null), setSpan(null), setEvent(null))}>
                show all
              </button>
            )}
            {AXES.some((axis) => axis === tab) && <Filter value={filter} set={setFilter} of="rows" />}
          </>
        }
        at={tab}
        set={setTab}
        tabs={[
          ...AXES.map((axis) => ({ key: axis, label: LABELS[axis], body: () => table(axis) })),
          {
            key: "flame",
            label: "Flame graph",
            body: () => (
              <Flames
                data={data}
                at={chosen?.axis === "module" ? (tables.module[chosen.row]?.name ?? null) : null}
                onSelect={(path) => {
                  const row = tables.module.findIndex((r) => r.name === path);
                  setChosen(row < 0 ? null : { axis: "module", row });
                }}
              />
            ),
          },
          ...(data.peak ? [{ key: "roofline", label: "Roofline", body: () => <Roofline rows={tables.line} peak={data.peak!} /> }] : []),
        ]}
      />
    </>
  );
}

async function save(client: ViewProps["client"], form: "perfetto" | "page"): Promise<void> {
  const { name, text } = await client.ask<File>("save", { form });
  download(name, text, form === "page" ? "text/html" : "application/json");
}

// Forward and backward apart, or both together.
function Flames({ data, at, onSelect }: { data: ProfileData; at: string | null; onSelect: (path: string | null) => void }) {
  const [which, setWhich] = useState<"all" | "forward" | "backward">("all");
  const time = (node: Branch): number =>
    which === "all" ? node.total : which === "backward" ? node.backward : node.total - node.backward;
  const cut = (node: Branch): Cut => ({
    name: node.name || "all",
    seconds: time(node) / RUNS,
    backward: which === "forward" ? 0 : node.backward / RUNS,
    children: node.children.map(cut),
  });
  if (data.device === 0) return <p class="dim">{IDLE}</p>;
  const colours = Object.fromEntries(data.categories.map(({ name, colour }) => [`--c-${name}`, colour]));
  return (
    <div style={colours}>
      <div class="bar">
        {(["all", "forward", "backward"] as const).map((one) => (
          <button type="button" key={one} aria-pressed={which === one} onClick={() => setWhich(one)}>
            {one}
          </button>
        ))}
        <Legend of={data.categories.filter(({ name }) => name === "forward" || name === "backward")} />
        <span class="dim wide">a press marks a module in the timeline, a double press widens it</span>
      </div>
      <Flame
        tree={cut(data.tree)}
        whole={data.device / RUNS}
        label={`Time by module path, ${which}`}
        at={at}
        onSelect={onSelect}
      />
    </div>
  );
}

const Legend = ({ of }: { of: readonly { name: string; colour: string }[] }) => (
  <>
    {of.map(({ name, colour }) => (
      <span key={name}>
        <span class="dot" style={{ background: colour }} aria-hidden="true" /> {name}
      </span>
    ))}
  </>
);

// The wall time of the device and of the thread that ran the code: a bar each, its parts named below.
function Phases({ data }: { data: ProfileData }) {
  return (
    <div class="phases">
      {data.phases.map(({ who, parts }) => {
        const total = parts.reduce((sum, { time }) => sum + time, 0) || 1;
        const shown = parts.filter(({ time }) => time > 0);
        return (
          <div key={who}>
            <span class="dim">{who}</span>
            <div class="stack" aria-hidden="true">
              {shown.map((part) => (
                <span key={part.name} style={{ flexGrow: part.time / total, background: part.colour }} />
              ))}
            </div>
            <ul class="legend" aria-label={`What the time of ${who} was`}>
              {shown.map((part) => (
                <li key={part.name} title={part.note}>
                  <span class="dot" style={{ background: part.colour }} aria-hidden="true" /> {part.name} {seconds(part.time / RUNS)}{" "}
                  <span class="dim">{share(part.time / total)}</span>
                </li>
              ))}
            </ul>
          </div>
        );
      })}
    </div>
  );
}
