// `%jax cache`: what was compiled in this session, and why again.
import { count, seconds } from "../format.ts";
import type { ViewProps } from "../frame.tsx";
import { useKept } from "../kept.ts";
import { Act, Filter, Tabs, where } from "../parts.tsx";
import type { CacheData, CachedFunction, CachedProgram, Total } from "../shapes.ts";
import { Table, type Column, type Sort } from "../table.tsx";

type Client = ViewProps["client"];

const COLUMNS: Column<CachedFunction>[] = [
  {
    key: "name",
    label: "Name",
    value: (f) => f.name,
    draw: (f) => (
      <>
        <span class="mono">{f.name}</span>
        {f.programs.length + f.left_out > 1 && <span class="dim"> ({count(f.programs.length + f.left_out)})</span>}
        {f.keeps > 0 && <span class="badge">HLO kept</span>}
        {f.place && <div class="dim">{where(f)}</div>}
      </>
    ),
  },
  { key: "kind", label: "Kind", value: (f) => f.kind },
  { key: "calls", label: "Calls", kind: "count", says: "how often it ran, which JAX does not tell of a jax.jit", value: (f) => f.calls },
  { key: "hits", label: "Hits", kind: "count", wide: true, says: "calls that found it compiled", value: (f) => f.hits },
  {
    key: "traces",
    label: "Traced",
    kind: "count",
    value: (f) => f.traces,
    draw: (f) => <span class={f.why.length ? "bad" : undefined}>{count(f.traces || null)}</span>,
  },
  { key: "trace", label: "Trace", kind: "seconds", wide: true, value: (f) => f.trace },
  { key: "lowering", label: "Lowering", kind: "seconds", wide: true, value: (f) => f.lowering },
  { key: "xla", label: "XLA", kind: "seconds", wide: true, value: (f) => f.xla },
  { key: "seconds", label: "All", kind: "seconds", says: "trace, lowering and XLA", value: (f) => f.seconds },
  { key: "code", label: "Code", kind: "bytes", wide: true, value: (f) => f.code || null },
  { key: "memory", label: "Memory", kind: "bytes", wide: true, says: "the most that a run of it takes", value: (f) => f.memory },
  { key: "flops", label: "FLOPs", kind: "flops", wide: true, value: (f) => f.flops },
];

const PROGRAMS = (client: Client): Column<CachedProgram>[] => [
  {
    key: "id",
    label: "Program",
    value: (p) => p.id,
    draw: (p) => (
      <>
        <span class="mono">#{p.id}</span> {{ "": "", saving: "forward", backward: "backward" }[p.part]}
        {p.place && <div class="dim">{p.place}</div>}
      </>
    ),
  },
  { key: "signature", label: "Inputs", value: (p) => p.signature.join(", "), draw: (p) => <Inputs signature={p.signature} /> },
  { key: "calls", label: "Calls", kind: "count", wide: true, value: (p) => p.calls },
  {
    key: "seconds",
    label: "Compiled in",
    kind: "seconds",
    value: (p) => p.seconds,
    draw: (p) => (
      <span title={`trace ${seconds(p.trace)}, lowering ${seconds(p.lowering)}, XLA ${seconds(p.xla)}`}>
        {seconds(p.seconds)}
        {p.persistent_hit && <div class="dim">from the persistent cache</div>}
      </span>
    ),
  },
  { key: "code", label: "Code", kind: "bytes", wide: true, value: (p) => p.code || null },
  { key: "memory", label: "Memory", kind: "bytes", wide: true, value: (p) => p.memory },
  { key: "flops", label: "FLOPs", kind: "flops", wide: true, value: (p) => p.flops },
  {
    key: "kept",
    label: "HLO",
    value: (p) => (p.kept ? "kept" : p.alive ? "there" : "gone"),
    draw: (p) =>
      p.kept ? (
        <span class="badge">kept</span>
      ) : p.alive ? (
        <Act label={`Keep the HLO of #${p.id}`} run={() => client.ask("keep", { program: p.id })}>
          keep
        </Act>
      ) : (
        <span class="dim" title="nobody can run it any more">
          gone
        </span>
      ),
  },
];

export function CacheView({ data, client }: ViewProps<CacheData>) {
  const [filter, setFilter] = useKept(client, "filter", data.filter);
  const [tab, setTab] = useKept<string>(client, "tab", "rows");
  const { total } = data;
  const sort: Sort | null = data.sort ? { key: data.sort, down: data.sort !== "name" } : null;
  const columns = COLUMNS.filter((c) => c.key === "name" || data.rows.some((f) => c.value(f) != null));
  const again = total.retraced === 1 ? "traced again once" : `traced again ${count(total.retraced)} times`;
  return (
    <>
      <div class="bar">
        <span class="title">
          {count(total.programs)} program{total.programs === 1 ? "" : "s"}
        </span>
        <span class="badge">trace {seconds(total.trace)}</span>
        <span class="badge">lowering {seconds(total.lowering)}</span>
        <span class="badge">XLA {seconds(total.xla)}</span>
        {total.retraced > 0 && <span class="badge bad">{again}</span>}
        {total.evicted > 0 && (
          <span class="badge" title="the longest unused, to stay within program_memory">
            {count(total.evicted)} evicted
          </span>
        )}
        <span class="space" />
        <Filter value={filter} set={setFilter} of="programs" />
        <Act run={() => client.ask("clear", {})}>clear all</Act>
      </div>
      <Tabs
        label="Compiled programs"
        at={tab}
        set={setTab}
        tabs={[
          {
            key: "rows",
            label: "By function",
            body: () => (
              <Table
                client={client}
                name="What was compiled"
                rows={data.rows}
                columns={columns}
                id={(f) => f.id}
                filter={filter}
                words={(f) => [f.place, f.signature, ...f.why.flatMap((w) => w.what)].join(" ")}
                detail={(f) => <Opened of={f} client={client} />}
                sort={sort}
              />
            ),
          },
          { key: "cells", label: "By cell", body: () => <Totals name="Compile time by cell" rows={data.cells} {...{ client, filter }} /> },
          { key: "sites", label: "By line", body: () => <Totals name="Compile time by line" rows={data.sites} {...{ client, filter }} /> },
        ]}
      />
    </>
  );
}

function Totals(props: { name: string; rows: Total[]; client: Client; filter: string }) {
  return (
    <Table
      {...props}
      id={(t) => t.id}
      columns={[
        { key: "place", label: "Where", value: (t) => where(t) ?? "elsewhere" },
        { key: "programs", label: "Programs", kind: "count", value: (t) => t.programs },
        { key: "seconds", label: "Compile time", kind: "seconds", value: (t) => t.seconds },
      ]}
    />
  );
}

// What opens under a row: why it was traced again, and its programs.
function Opened({ of, client }: { of: CachedFunction; client: Client }) {
  const said = new Set<string>();
  const used = PROGRAMS(client).filter((c) => of.programs.some((p) => c.value(p) != null));
  return (
    <>
      {of.why.map((why) => (
        <p class="notice" key={why.nth}>
          Traced again{why.place && ` at ${why.place}`}: {why.what.join(", ") || "for a reason that is not known"}
          {why.advice.map((advice) => {
            if (!advice || said.has(advice)) return null;
            said.add(advice);
            return <div class="dim">{advice}</div>;
          })}
        </p>
      ))}
      <Table client={client} name={`Programs of ${of.name}`} rows={of.programs} columns={used} id={(p) => p.id} />
      <div class="bar">
        {of.left_out > 0 && <span class="dim">{count(of.left_out)} earlier ones are not shown.</span>}
        <span class="space" />
        <Act label={`Clear ${of.name}`} run={() => client.ask("clear", { function: of.id })}>
          clear
        </Act>
      </div>
    </>
  );
}

function Inputs({ signature }: { signature: string[] }) {
  const text = signature.join(", ") || "none";
  if (text.length < 90) return <span class="mono">{text}</span>;
  return (
    <details>
      <summary class="mono">
        {signature.slice(0, 2).join(", ")} … {count(signature.length)} in all
      </summary>
      <span class="mono">{text}</span>
    </details>
  );
}
