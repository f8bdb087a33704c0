// `%jax cache`: every compiled program of the session.
import { useMemo } from "preact/hooks";
import { bytes, count, flops, seconds } from "../format.ts";
import type { ViewProps } from "../frame.tsx";
import { useKept } from "../kept.ts";
import { Act, Filter, Tabs } from "../parts.tsx";
import type { CacheData, Program, Total } from "../shapes.ts";
import { Table, type Column } from "../table.tsx";

const COLUMNS: Column<Program>[] = [
  {
    key: "name",
    label: "Program",
    value: (p) => p.name,
    draw: (p) => (
      <>
        <span class="mono">{p.name}</span>
        {p.place && <div class="dim">{p.place}</div>}
      </>
    ),
  },
  { key: "kind", label: "Kind", value: (p) => p.kind },
  { key: "calls", label: "Calls", kind: "count", value: (p) => p.calls },
  { key: "hits", label: "Hits", kind: "count", wide: true, says: "calls that found it compiled", value: (p) => p.hits },
  {
    key: "traces",
    label: "Traced",
    kind: "count",
    says: "how often what it comes from was traced",
    value: (p) => p.traces,
    draw: (p) => <span class={p.reason ? "bad" : undefined}>{count(p.traces)}</span>,
  },
  { key: "trace", label: "Trace", kind: "seconds", wide: true, value: (p) => p.trace },
  { key: "lowering", label: "Lowering", kind: "seconds", wide: true, value: (p) => p.lowering },
  { key: "xla", label: "XLA", kind: "seconds", value: (p) => p.xla },
  { key: "code", label: "Code", kind: "bytes", wide: true, value: (p) => p.code },
  { key: "memory", label: "Memory", kind: "bytes", wide: true, value: (p) => p.memory },
  { key: "flops", label: "FLOPs", kind: "flops", wide: true, value: (p) => p.flops },
];

const TOTALS: Column<Total>[] = [
  { key: "name", label: "Where", value: (t) => t.name },
  { key: "programs", label: "Programs", kind: "count", value: (t) => t.programs },
  { key: "seconds", label: "Compile time", kind: "seconds", value: (t) => t.seconds },
];

export function CacheView({ data, client }: ViewProps<CacheData>) {
  const [filter, setFilter] = useKept(client, "filter", "");
  const [tab, setTab] = useKept(client, "tab", "programs");
  const { rows } = data;
  const children = useMemo(() => {
    const found = new Map<Program["id"], Program[]>();
    for (const row of rows) {
      if (row.parent !== null) found.set(row.parent, [...(found.get(row.parent) ?? []), row]);
    }
    return found;
  }, [rows]);
  const top = rows.filter((row) => row.parent === null);
  const own = rows.filter((row) => !children.has(row.id));
  const total = own.reduce((sum, p) => sum + (p.trace ?? 0) + (p.lowering ?? 0) + (p.xla ?? 0), 0);
  // A filter looks through what is folded; without one, the folded row stands for it.
  const shown = filter.trim() ? own : top;
  const words = (p: Program): string => [p.place, p.reason, p.advice, ...p.signature].filter(Boolean).join(" ");
  const detail = (p: Program) =>
    children.has(p.id) ? (
      <Table
        client={client}
        name={`programs of ${p.name}`}
        rows={children.get(p.id)!}
        columns={COLUMNS}
        id={(c) => c.id}
        detail={(c) => <Details program={c} ask={client.ask.bind(client)} />}
      />
    ) : (
      <Details program={p} ask={client.ask.bind(client)} />
    );
  return (
    <>
      <div class="bar">
        <span class="title">
          {count(own.length)} program{own.length === 1 ? "" : "s"}, {seconds(total)} to compile
        </span>
        <span class="space" />
        <Filter value={filter} set={setFilter} of="programs" />
        <Act run={() => client.ask("clear", { id: null })}>clear all</Act>
      </div>
      <Tabs
        label="Cache"
        at={tab}
        set={setTab}
        tabs={[
          {
            key: "programs",
            label: "Programs",
            body: () => (
              <Table
                client={client}
                name="Compiled programs"
                rows={shown}
                columns={COLUMNS}
                id={(p) => p.id}
                filter={filter}
                words={words}
                detail={detail}
              />
            ),
          },
          {
            key: "places",
            label: "By line",
            body: () => <Totals name="Compile time by line" rows={data.places} client={client} filter={filter} />,
          },
          {
            key: "cells",
            label: "By cell",
            body: () => <Totals name="Compile time by cell" rows={data.cells} client={client} filter={filter} />,
          },
        ]}
      />
    </>
  );
}

function Totals(props: { name: string; rows: Total[]; client: ViewProps["client"]; filter: string }) {
  return <Table {...props} columns={TOTALS} id={(t) => t.id} sort={{ key: "seconds", down: true }} />;
}

function Details({ program: p, ask }: { program: Program; ask: ViewProps["client"]["ask"] }) {
  return (
    <>
      {p.reason && (
        <p class="notice">
          Traced again: {p.reason}
          {p.advice && (
            <>
              <br />
              {p.advice}
            </>
          )}
        </p>
      )}
      <dl>
        <dt>Inputs</dt>
        <dd class="mono">{p.signature.length ? p.signature.join(", ") : "none"}</dd>
        <dt>Compiled in</dt>
        <dd>
          {seconds(p.trace)} trace, {seconds(p.lowering)} lowering, {seconds(p.xla)} XLA
          {p.persistent && " (from the persistent cache)"}
        </dd>
        <dt>Size</dt>
        <dd>{[p.code != null && `code ${bytes(p.code)}`, p.memory != null && `memory ${bytes(p.memory)}`, p.flops != null && `${flops(p.flops)} FLOPs`].filter(Boolean).join(", ") || "not known"}</dd>
      </dl>
      <div class="bar">
        <span class="dim mono">%jax hlo {p.id}</span>
        <Act pressed={p.kept} run={() => ask("keep", { id: p.id })}>
          {p.kept ? "HLO is kept" : "keep HLO"}
        </Act>
        <Act run={() => ask("clear", { id: p.id })}>clear</Act>
        {!p.alive && !p.kept && <span class="badge">gone: nobody can run it any more</span>}
      </div>
    </>
  );
}
