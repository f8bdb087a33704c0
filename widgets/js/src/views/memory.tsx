// `%jax memory`: which arrays are alive, which line made them, what keeps them.
import { useState } from "preact/hooks";
import { bytes, count } from "../format.ts";
import type { ViewProps } from "../frame.tsx";
import { useKept } from "../kept.ts";
import { Act, Filter, Tabs, where } from "../parts.tsx";
import type { MemoryData } from "../shapes.ts";
import { Table } from "../table.tsx";

type Client = ViewProps["client"];

const shape = (array: MemoryData["arrays"][number]): string => `${array.dtype}[${array.shape.join(",")}]`;

export function MemoryView({ data, client }: ViewProps<MemoryData>) {
  const [tab, setTab] = useKept<string>(client, "tab", "arrays");
  const [filter, setFilter] = useKept(client, "filter", "");
  const { left_out: left } = data;
  return (
    <>
      <div class="bar">
        <span class="title">
          {bytes(data.total)} in {count(data.arrays.length + left.arrays)} arrays
        </span>
        <span class="badge">peak {bytes(data.peak)}</span>
        <span class="badge">
          {bytes(data.free)} free of {bytes(data.limit)}
        </span>
        <span class="space" />
        <Filter value={filter} set={setFilter} of="arrays" />
      </div>
      <Tabs
        label="Memory"
        at={tab}
        set={setTab}
        tabs={[
          {
            key: "arrays",
            label: "Arrays",
            body: () => (
              <>
                <Table
                  client={client}
                  name="Arrays alive"
                  rows={data.arrays}
                  id={(a) => a.id}
                  filter={filter}
                  detail={(a) => <Why client={client} id={a.id} />}
                  columns={[
                    {
                      key: "name",
                      label: "Array",
                      value: (a) => a.name ?? "",
                      draw: (a) => (
                        <>
                          <span class="mono">{a.name ?? "(no name)"}</span>
                          <div class="dim narrow">{where(a)}</div>
                        </>
                      ),
                    },
                    { key: "shape", label: "Shape", value: shape, draw: (a) => <span class="mono">{shape(a)}</span> },
                    { key: "place", label: "Made at", wide: true, value: (a) => where(a) },
                    { key: "by", label: "By", wide: true, value: (a) => a.made_by },
                    { key: "bytes", label: "Size", kind: "bytes", value: (a) => a.bytes },
                    { key: "share", label: "Share", kind: "share", wide: true, value: (a) => a.bytes / (data.total || 1) },
                  ]}
                />
                {left.arrays > 0 && (
                  <p class="dim">
                    {count(left.arrays)} smaller ones, {bytes(left.bytes)}, are not shown.
                  </p>
                )}
              </>
            ),
          },
          {
            key: "lines",
            label: "By line",
            body: () => (
              <Table
                client={client}
                name="Memory by line"
                rows={data.lines}
                id={(l) => l.id}
                filter={filter}
                columns={[
                  { key: "place", label: "Made at", value: (l) => where(l) || "elsewhere" },
                  { key: "arrays", label: "Arrays", kind: "count", value: (l) => l.arrays },
                  { key: "bytes", label: "Size", kind: "bytes", value: (l) => l.bytes },
                ]}
              />
            ),
          },
          {
            key: "cells",
            label: "By cell",
            body: () => (
              <>
                <Peaks cells={data.cells} />
                <Table
                  client={client}
                  name="Memory by cell"
                  rows={data.cells}
                  id={(c) => c.id}
                  columns={[
                    { key: "cell", label: "Cell", value: (c) => c.cell, draw: (c) => (c.cell === null ? "elsewhere" : `[${c.cell}]`) },
                    { key: "seconds", label: "Began", kind: "seconds", says: "after the first of these cells", wide: true, value: (c) => c.seconds },
                    { key: "before", label: "Before", kind: "bytes", value: (c) => c.before },
                    { key: "peak", label: "Peak", kind: "bytes", value: (c) => c.peak },
                    { key: "after", label: "After", kind: "bytes", value: (c) => c.after },
                  ]}
                />
              </>
            ),
          },
        ]}
      />
    </>
  );
}

function Why({ client, id }: { client: Client; id: string }) {
  const [ways, setWays] = useState<string[] | null>(null);
  return (
    <>
      <Act run={async () => setWays(await client.ask<string[]>("why", { array: id }))}>what keeps it alive</Act>
      {ways && (
        <ul class="mono">
          {ways.length ? ways.map((way, i) => <li key={i}>{way}</li>) : <li>nothing that Python can see</li>}
        </ul>
      )}
    </>
  );
}

// What each cell held, one bar a cell: up to its peak, and how much of that it left.
function Peaks({ cells }: { cells: MemoryData["cells"] }) {
  if (cells.length < 2) return null;
  const shown = cells.slice(-60);
  const most = Math.max(...shown.map((c) => c.peak), 1);
  const [width, height] = [10 * shown.length, 60];
  const bar = (i: number, size: number) => {
    const tall = (size / most) * (height - 2);
    return { x: 10 * i + 1, width: 8, y: height - tall, height: tall };
  };
  const said = `Memory of the last ${shown.length} cells, at most ${bytes(most)}`;
  return (
    <svg class="peaks" width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={said}>
      {shown.map((c, i) => (
        <g key={c.id}>
          <title>{`cell [${c.cell}]: peak ${bytes(c.peak)}, after ${bytes(c.after)}`}</title>
          <rect {...bar(i, c.peak)} fill="var(--mark2)" stroke="var(--line)" />
          <rect {...bar(i, c.after)} fill="var(--bar)" />
        </g>
      ))}
    </svg>
  );
}
