// `%%jax profile`: where the time went: a timeline, and tables by line, module, operator and instruction that choose
// from each other: what is chosen in one is marked in the timeline.
import { useMemo } from "preact/hooks";
import { Flame } from "../flame.tsx";
import { bytes, flops, seconds, share } from "../format.ts";
import type { ViewProps } from "../frame.tsx";
import { useKept } from "../kept.ts";
import { Act, download, Filter, Tabs } from "../parts.tsx";
import type { ProfileData, Row } from "../shapes.ts";
import { Table, type Column } from "../table.tsx";
import { theme } from "../theme.ts";
import { Timeline, type Span } from "../timeline.tsx";

type Axis = "line" | "module" | "operator" | "instruction";

const OF: Record<Axis, "lines" | "modules" | "operators" | "instructions"> = {
  line: "lines",
  module: "modules",
  operator: "operators",
  instruction: "instructions",
};

export const columns = (first: string): Column<Row>[] => [
  {
    key: "name",
    label: first,
    value: (r) => r.name,
    draw: (r) => (
      <>
        <span class="mono">{r.source ?? r.name}</span>
        {r.source && <div class="dim">{r.name}</div>}
      </>
    ),
  },
  {
    key: "seconds",
    label: "Time",
    kind: "seconds",
    value: (r) => r.seconds,
    draw: (r) => (
      <span title={r.inferred ? "inferred: a fusion's time, split by the cost of what is fused" : "measured"}>
        {r.inferred && "≈ "}
        {seconds(r.seconds)}
      </span>
    ),
  },
  {
    key: "share",
    label: "Share",
    kind: "share",
    value: (r) => r.share,
    draw: (r) => (
      <>
        {share(r.share)} <span class="share wide" aria-hidden="true" style={{ width: `${Math.max(r.share * 80, 1)}px` }} />
      </>
    ),
  },
  { key: "count", label: "Runs", kind: "count", wide: true, value: (r) => r.count },
  { key: "forward", label: "Forward", kind: "seconds", wide: true, value: (r) => r.forward },
  { key: "backward", label: "Backward", kind: "seconds", wide: true, value: (r) => r.backward },
  { key: "flops", label: "FLOPs", kind: "flops", wide: true, value: (r) => r.flops },
  { key: "bytes", label: "Bytes", kind: "bytes", wide: true, value: (r) => r.bytes },
];

export function ProfileView({ data, client }: ViewProps<ProfileData>) {
  const [tab, setTab] = useKept(client, "tab", "line");
  const [filter, setFilter] = useKept(client, "filter", "");
  const [chosen, setChosen] = useKept<{ axis: Axis; id: string } | null>(client, "chosen", null);
  const [event, setEvent] = useKept<number | null>(client, "event", null);
  const [span, setSpan] = useKept<Span | null>(client, "span", null);
  const { events } = data;

  // Of an event, the row of each table: the tables link to each other through the events.
  const of = useMemo<Partial<Record<Axis, readonly number[]>>>(
    () => ({ line: events.of_line, module: events.of_module, operator: events.of_operator }),
    [events],
  );
  const rowOf = (axis: Axis, i: number): Row | undefined => {
    const index = of[axis]?.[i] ?? -1;
    if (axis === "instruction") return data.instructions.find((r) => r.name === data.names[events.name[i]!]);
    return index < 0 ? undefined : data[OF[axis]][index];
  };
  const marked = useMemo(() => {
    if (!chosen) return undefined;
    const row = data[OF[chosen.axis]].findIndex((r) => r.id === chosen.id);
    const own = of[chosen.axis];
    if (chosen.axis === "instruction") {
      const name = data.instructions[row]?.name;
      return (i: number) => data.names[events.name[i]!] === name;
    }
    return own && ((i: number) => own[i] === row);
  }, [chosen, data, of]);
  const select = (i: number | null): void => {
    setEvent(i);
    if (i === null) return setChosen(null);
    const axis = (["line", "module", "operator", "instruction"] as const).find((a) => a === tab) ?? "line";
    const row = rowOf(axis, i);
    setChosen(row ? { axis, id: row.id } : null);
  };
  // Within a selected time only, the rows whose events lie in it.
  const within = useMemo(() => {
    if (!span) return null;
    const found: Record<string, Set<number>> = { line: new Set(), module: new Set(), operator: new Set() };
    events.start.forEach((start, i) => {
      if (start + events.duration[i]! < span.from || start > span.to) return;
      for (const axis of ["line", "module", "operator"] as const) {
        const index = of[axis]?.[i] ?? -1;
        if (index >= 0) found[axis]!.add(index);
      }
    });
    return found;
  }, [span, events, of]);

  const table = (axis: Axis, label: string) => {
    const all = data[OF[axis]];
    const inSpan = within?.[axis];
    const rows = inSpan ? all.filter((_, i) => inSpan.has(i)) : all;
    const used = columns(label).filter((c) => c.key === "name" || rows.some((r) => c.value(r) != null));
    return (
      <Table
        client={client}
        name={`Time by ${axis}`}
        rows={rows}
        id={(r) => r.id}
        filter={filter}
        words={(r) => `${r.place ?? ""} ${r.source ?? ""}`}
        sort={{ key: "seconds", down: true }}
        selected={(r) => chosen?.axis === axis && chosen.id === r.id}
        onSelect={(r) => setChosen(chosen?.id === r.id && chosen.axis === axis ? null : { axis, id: r.id })}
        columns={used}
      />
    );
  };
  const told = event === null ? null : { line: rowOf("line", event), module: rowOf("module", event), operator: rowOf("operator", event) };
  return (
    <>
      <div class="bar">
        <span class="title">{data.title}</span>
        {data.facts.map(([name, value]) => (
          <span class="badge" key={name}>
            {name} {value}
          </span>
        ))}
        <span class="space" />
        <Act run={() => save(client, "perfetto")}>Perfetto trace</Act>
        <Act run={() => save(client, "page")}>HTML page</Act>
      </div>
      <Phases phases={data.phases} />
      <Timeline
        events={events}
        lanes={data.lanes}
        names={data.names}
        marked={marked}
        selected={event}
        onSelect={select}
        span={span}
        onSpan={setSpan}
        label="Timeline"
        theme={theme()}
      />
      {told && (
        <p class="dim">
          {[told.line && `line ${told.line.name}`, told.module && `module ${told.module.name}`, told.operator && `operator ${told.operator.name}`]
            .filter(Boolean)
            .join(" · ")}
        </p>
      )}
      <div class="bar">
        <Filter value={filter} set={setFilter} of="rows" />
        {chosen && (
          <button type="button" onClick={() => setChosen(null)}>
            show all
          </button>
        )}
      </div>
      <Tabs
        label="Time by"
        at={tab}
        set={setTab}
        tabs={[
          { key: "line", label: "Line", body: () => table("line", "Line") },
          { key: "module", label: "Module", body: () => table("module", "Module") },
          { key: "operator", label: "Operator", body: () => table("operator", "Operator") },
          { key: "instruction", label: "HLO instruction", body: () => table("instruction", "Instruction") },
          {
            key: "flame",
            label: "Flame graph",
            body: () => (
              <Flame
                tree={data.flame}
                label="Time by module path"
                at={chosen?.axis === "module" ? chosen.id : null}
                onSelect={(path) => setChosen(path === null ? null : { axis: "module", id: path })}
              />
            ),
          },
          ...(data.roofline ? [{ key: "roofline", label: "Roofline", body: () => <Roofline of={data.roofline!} /> }] : []),
        ]}
      />
    </>
  );
}

async function save(client: ViewProps["client"], form: "perfetto" | "page"): Promise<void> {
  const { name, text } = await client.ask<{ name: string; text: string }>("save", { form });
  download(name, text, form === "page" ? "text/html" : "application/json");
}

const COLOURS = ["#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d"];

// What the wall time was spent on, as one bar; its parts are named below it.
function Phases({ phases }: { phases: ProfileData["phases"] }) {
  const total = phases.reduce((sum, p) => sum + p.seconds, 0) || 1;
  const shown = phases.filter((p) => p.seconds > 0);
  if (shown.length === 0) return null;
  return (
    <div>
      <div class="phases" aria-hidden="true">
        {shown.map((p, i) => (
          <span key={p.id} title={`${p.name} ${seconds(p.seconds)}`} style={{ flexGrow: p.seconds / total, background: COLOURS[i % COLOURS.length] }} />
        ))}
      </div>
      <ul class="legend" aria-label="What the time was spent on">
        {shown.map((p, i) => (
          <li key={p.id}>
            <span class="dot" style={{ background: COLOURS[i % COLOURS.length] }} aria-hidden="true" /> {p.name} {seconds(p.seconds)} (
            {share(p.seconds / total)})
          </li>
        ))}
      </ul>
    </div>
  );
}

// Where a program lies under the device's two limits, both axes logarithmic.
function Roofline({ of: r }: { of: NonNullable<ProfileData["roofline"]> }) {
  const [width, height, pad] = [420, 220, 36];
  const ridge = r.peak_flops / r.peak_bytes;
  const xs = [Math.min(ridge, r.flops_per_byte) / 10, Math.max(ridge, r.flops_per_byte) * 10].map(Math.log10) as [number, number];
  const ys = [Math.log10(Math.max(Math.min(r.flops_per_second, r.peak_flops * 0.01) / 3, 1)), Math.log10(r.peak_flops * 3)] as const;
  const x = (v: number): number => pad + ((Math.log10(v) - xs[0]) / (xs[1] - xs[0])) * (width - pad - 8);
  const y = (v: number): number => height - pad - ((Math.log10(Math.max(v, 1)) - ys[0]) / (ys[1] - ys[0])) * (height - pad - 8);
  const roof = [10 ** xs[0], ridge, 10 ** xs[1]].map((v) => `${x(v)},${y(Math.min(r.peak_flops, v * r.peak_bytes))}`).join(" ");
  const said = `${flops(r.flops_per_second)}FLOP/s at ${r.flops_per_byte.toFixed(1)} FLOPs a byte; the roof there is ${flops(Math.min(r.peak_flops, r.flops_per_byte * r.peak_bytes))}FLOP/s (peak ${flops(r.peak_flops)}FLOP/s, ${bytes(r.peak_bytes)}/s)`;
  return (
    <figure class="roofline">
      <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={said}>
        <polyline points={roof} fill="none" stroke="var(--fg)" stroke-width="1.5" />
        <line x1={pad} y1={height - pad} x2={width - 8} y2={height - pad} stroke="var(--line)" />
        <line x1={pad} y1={8} x2={pad} y2={height - pad} stroke="var(--line)" />
        <circle cx={x(r.flops_per_byte)} cy={y(r.flops_per_second)} r="5" fill="var(--accent)" />
        <text x={width / 2} y={height - 10} text-anchor="middle" fill="var(--dim)" font-size="11">
          FLOPs a byte
        </text>
        <text x={12} y={height / 2} text-anchor="middle" fill="var(--dim)" font-size="11" transform={`rotate(-90 12 ${height / 2})`}>
          FLOP/s
        </text>
      </svg>
      <figcaption>{said}</figcaption>
    </figure>
  );
}
