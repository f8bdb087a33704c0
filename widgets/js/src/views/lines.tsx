// `%%jax lines`: the cell's source, each line with its time on the device.
import type { ViewProps } from "../frame.tsx";
import { flops, seconds, share } from "../format.ts";
import { useKept } from "../kept.ts";
import { Tabs } from "../parts.tsx";
import type { LinesData } from "../shapes.ts";
import { Table } from "../table.tsx";
import { columns } from "./profile.tsx";

export function LinesView({ data, client }: ViewProps<LinesData>) {
  const [tab, setTab] = useKept(client, "tab", "source");
  const most = Math.max(...data.rows.map((r) => r.share), 1e-9);
  return (
    <>
      <div class="bar">
        <span class="title">{data.title}</span>
        {data.facts.map(([name, value]) => (
          <span class="badge" key={name}>
            {name} {value}
          </span>
        ))}
      </div>
      <Tabs
        label="Lines"
        at={tab}
        set={setTab}
        tabs={[
          {
            key: "source",
            label: "In their order",
            body: () => (
              <>
                {data.sources.map((source, file) => {
                  const rows = new Map(data.rows.filter((r) => r.file === file).map((r) => [r.line, r]));
                  return (
                    <div class="scroll" tabIndex={0} role="region" aria-label={source.name} key={file}>
                      <table class="annotated">
                        <thead>
                          <tr>
                            {["Line", "Time", "Share", "FLOPs", source.name].map((label, i) => (
                              <th class={`plain ${i > 0 && i < 4 ? "num" : ""}`} scope="col" key={label}>
                                {label}
                              </th>
                            ))}
                          </tr>
                        </thead>
                        <tbody>
                          {source.text.split("\n").map((text, i) => {
                            const row = rows.get(source.first + i);
                            const heat = row ? Math.round((row.share / most) * 60) : 0;
                            return (
                              <tr key={i} data-line={source.first + i} style={heat ? { background: `color-mix(in srgb, var(--mark) ${heat}%, transparent)` } : undefined}>
                                <td class="num dim">{source.first + i}</td>
                                <td class="num">{row && `${row.inferred ? "≈ " : ""}${seconds(row.seconds)}`}</td>
                                <td class="num">{row && share(row.share)}</td>
                                <td class="num">{row && flops(row.flops)}</td>
                                <td>
                                  <code class="text">{text || " "}</code>
                                </td>
                              </tr>
                            );
                          })}
                        </tbody>
                      </table>
                    </div>
                  );
                })}
              </>
            ),
          },
          {
            key: "rows",
            label: "The slowest first",
            body: () => (
              <Table
                client={client}
                name="Time by line"
                rows={data.rows}
                id={(r) => r.id}
                sort={{ key: "seconds", down: true }}
                columns={columns("Line").filter((c) => c.key === "name" || data.rows.some((r) => c.value(r) != null))}
              />
            ),
          },
        ]}
      />
    </>
  );
}
