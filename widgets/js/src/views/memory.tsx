// `%jax memory`: which arrays are alive, who made them, what keeps them.
import { useState } from "preact/hooks";
import { bytes, seconds } from "../format.ts";
import type { ViewProps } from "../frame.tsx";
import { useKept } from "../kept.ts";
import { Act, Filter, Tabs } from "../parts.tsx";
import type { MemoryData } from "../shapes.ts";
import { Table } from "../table.tsx";

export function MemoryView({ data, client }: ViewProps<MemoryData>) {
  const [tab, setTab] = useKept(client, "tab", "arrays");
  const [filter, setFilter] = useKept(client, "filter", "");
  return (
    <>
      <div class="bar">
        <span class="title">
          {bytes(data.now)} in {data.arrays.length} arrays
        </span>
        <span class="badge">peak {bytes(data.peak)}</span>
        <span class="space" />
        <Filter value={filter} set={setFilter} of="arrays" />
      </div>
      <History {...data.history} />
      <Tabs
        label="Memory"
        at={tab}
        set={setTab}
        tabs={[
          {
            key: "arrays",
            label: "Arrays",
            body: () => (
              <Table
                client={client}
                name="Arrays alive"
                rows={data.arrays}
                id={(a) => a.id}
                filter={filter}
                sort={{ key: "bytes", down: true }}
                detail={(a) => <Why client={client} id={a.id} />}
                columns={[
                  { key: "name", label: "Array", value: (a) => a.name },
                  { key: "shape", label: "Shape", value: (a) => `${a.dtype}[${a.shape}]` },
                  { key: "place", label: "Made at", wide: true, value: (a) => a.place },
                  { key: "bytes", label: "Size", kind: "bytes", value: (a) => a.bytes },
                ]}
              />
            ),
          },
          {
            key: "places",
            label: "By line",
            body: () => (
              <Table
                client={client}
                name="Memory by line"
                rows={data.places}
                id={(p) => p.id}
                filter={filter}
                sort={{ key: "bytes", down: true }}
                columns={[
                  { key: "name", label: "Made at", value: (p) => p.name },
                  { key: "count", label: "Arrays", kind: "count", value: (p) => p.count },
                  { key: "bytes", label: "Size", kind: "bytes", value: (p) => p.bytes },
                ]}
              />
            ),
          },
          {
            key: "programs",
            label: "Programs",
            body: () => (
              <Table
                client={client}
                name="Memory of a program's run"
                rows={data.programs}
                id={(p) => p.id}
                filter={filter}
                sort={{ key: "temporary", down: true }}
                columns={[
                  { key: "name", label: "Program", value: (p) => p.name },
                  { key: "arguments", label: "Arguments", kind: "bytes", value: (p) => p.arguments },
                  { key: "outputs", label: "Outputs", kind: "bytes", value: (p) => p.outputs },
                  { key: "temporary", label: "Temporary", kind: "bytes", value: (p) => p.temporary },
                  { key: "code", label: "Code", kind: "bytes", value: (p) => p.code },
                ]}
              />
            ),
          },
        ]}
      />
    </>
  );
}

function Why({ client, id }: { client: ViewProps["client"]; id: string | number }) {
  const [paths, setPaths] = useState<string[] | null>(null);
  return (
    <>
      <Act run={async () => setPaths(await client.ask<string[]>("why", { id }))}>what keeps this alive</Act>
      {paths && (
        <ul class="mono">
          {paths.length ? paths.map((path, i) => <li key={i}>{path}</li>) : <li>nothing that Python can see</li>}
        </ul>
      )}
    </>
  );
}

// Bytes over time, as steps.
function History({ at, bytes: sizes }: MemoryData["history"]) {
  if (at.length < 2) return null;
  const [width, height] = [600, 60];
  const [first, last] = [at[0]!, at.at(-1)!];
  const most = Math.max(...sizes, 1);
  const x = (t: number): number => ((t - first) / (last - first || 1)) * width;
  const y = (b: number): number => height - (b / most) * (height - 4);
  let path = `M0 ${height}`;
  at.forEach((t, i) => (path += `H${x(t).toFixed(1)}V${y(sizes[i]!).toFixed(1)}`));
  const said = `Memory over ${seconds(last - first)}, at most ${bytes(most)}`;
  return (
    <svg class="history" viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" role="img" aria-label={said}>
      <title>{said}</title>
      <path d={`${path}V${height}Z`} fill="var(--mark2)" stroke="var(--accent)" vector-effect="non-scaling-stroke" />
    </svg>
  );
}
