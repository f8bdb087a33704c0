// `%%jax lines`: the code, each line with its time on the device.
import { flops, bytes, seconds, share } from "../format.ts";
import type { ViewProps } from "../frame.tsx";
import { useKept } from "../kept.ts";
import { Filter, Tabs } from "../parts.tsx";
import type { LinesData } from "../shapes.ts";
import { Table } from "../table.tsx";
import { columns, type Row } from "./profile.tsx";

const HEADS = ["Line", "Time", "Share", "Backward", "Runs", "FLOPs", "Bytes"] as const;

export function LinesView({ data, client }: ViewProps<LinesData>) {
  const [tab, setTab] = useKept<string>(client, "tab", "source");
  const [filter, setFilter] = useKept(client, "filter", "");
  const whole = data.device || 1;
  const timed: (Row & { id: string })[] = data.sources.flatMap((source, s) =>
    source.lines.flatMap(({ number, text, time }) =>
      time ? [{ ...time, id: `${s} ${number}`, name: text.trim(), says: `${source.title}, line ${number}`, lines: [] }] : [],
    ),
  );
  const most = Math.max(...timed.map((r) => r.total), 1);
  return (
    <>
      <div class="bar">
        <span class="title">{data.title || "Lines"}</span>
        <span class="badge">
          {data.repeat > 1 ? `${data.repeat} runs, each ` : ""}
          {seconds(data.wall / 1e9)}
        </span>
        <span class="badge">{seconds(data.device / 1e9)} on the device</span>
        {data.unattributed > 0 && (
          <span class="badge">
            {seconds(data.unattributed / 1e9)} ({share(data.unattributed / whole)}) of no line
          </span>
        )}
      </div>
      <Tabs
        label="Lines"
        at={tab}
        set={setTab}
        tabs={[
          {
            key: "source",
            label: "In their order",
            body: () =>
              data.sources.map((source, s) => (
                <div class="scroll" tabIndex={0} role="region" aria-label={source.title} key={s}>
                  <table class="annotated">
                    <thead>
                      <tr>
                        {HEADS.map((label, i) => (
                          <th class={`plain num ${i > 2 ? "wide" : ""}`} scope="col" key={label}>
                            {label}
                          </th>
                        ))}
                        <th class="plain" scope="col">
                          {source.title}: {seconds(source.total / 1e9)}
                        </th>
                      </tr>
                    </thead>
                    <tbody>
                      {source.lines.map(({ number, text, time }) => {
                        const heat = time ? Math.round((time.total / most) * 70) : 0;
                        return (
                          <tr
                            key={number}
                            data-line={number}
                            style={heat ? { background: `color-mix(in srgb, var(--mark) ${heat}%, transparent)` } : undefined}
                          >
                            <td class="num">{number}</td>
                            <td class="num">{time && `${time.inferred > 0.05 * time.total ? "~" : ""}${seconds(time.total / 1e9)}`}</td>
                            <td class="num">{time && share(time.total / whole)}</td>
                            <td class="num wide">{time && time.backward > 0 && seconds(time.backward / 1e9)}</td>
                            <td class="num wide">{time && Math.round(time.count)}</td>
                            <td class="num wide">{time && flops(time.flops || null)}</td>
                            <td class="num wide">{time && bytes(time.bytes || null)}</td>
                            <td>
                              <code class="text">{text || " "}</code>
                            </td>
                          </tr>
                        );
                      })}
                    </tbody>
                  </table>
                </div>
              )),
          },
          {
            key: "rows",
            label: "The slowest first",
            body: () => (
              <>
                <div class="bar">
                  <Filter value={filter} set={setFilter} of="lines" />
                </div>
                <Table
                  client={client}
                  name="Time by line"
                  rows={timed}
                  id={(r) => r.id}
                  filter={filter}
                  words={(r) => r.says}
                  sort={{ key: "seconds", down: true }}
                  columns={columns<Row & { id: string }>("Line", whole)}
                />
              </>
            ),
          },
        ]}
      />
    </>
  );
}
