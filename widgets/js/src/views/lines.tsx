// `%%jax lines`: the code, each line with its time on the device.
import { bytes, count, flops, seconds, share } from "../format.ts";
import type { ViewProps } from "../frame.tsx";
import { useKept } from "../kept.ts";
import { Filter, Tabs } from "../parts.tsx";
import type { LinesData, Time } from "../shapes.ts";
import { Table } from "../table.tsx";
import { columns, type Row } from "./profile.tsx";

type Line = LinesData["sources"][number]["lines"][number];

// What stands beside a line; a column that has nothing for any line is left out.
type Shown = (line: Line, whole: number) => string;
const own =
  (of: (time: Time, whole: number) => string): Shown =>
  ({ time }, whole) => (time ? of(time, whole) : "");
const COLUMNS: { label: string; wide?: boolean; of: Shown }[] = [
  { label: "Time", of: own((t) => `${t.inferred > 0.05 * t.total ? "~" : ""}${seconds(t.total / 1e9)}`) },
  { label: "Share", of: own((t, whole) => share(t.total / whole)) },
  { label: "Inclusive", wide: true, of: ({ inclusive }) => (inclusive == null ? "" : seconds(inclusive / 1e9)) },
  { label: "Backward", wide: true, of: own((t) => (t.backward > 0 ? seconds(t.backward / 1e9) : "")) },
  { label: "Runs", wide: true, of: own((t) => count(Math.round(t.count))) },
  { label: "FLOPs", wide: true, of: own((t) => flops(t.flops || null)) },
  { label: "Bytes", wide: true, of: own((t) => bytes(t.bytes || null)) },
];
const NOTHING: Time = { total: 0, backward: 0, inferred: 0, count: 0, flops: 0, bytes: 0 };

export function LinesView({ data, client }: ViewProps<LinesData>) {
  const [tab, setTab] = useKept<string>(client, "tab", "source");
  const [filter, setFilter] = useKept(client, "filter", "");
  const whole = data.device || 1;
  const timed: (Row & { id: string })[] = data.sources.flatMap((source, s) =>
    source.lines.flatMap(({ number, text, time, inclusive }) => {
      if (!time && inclusive == null) return [];
      const row = { id: `${s} ${number}`, name: text.trim(), says: `${source.title}, line ${number}`, lines: [] };
      return [{ ...(time ?? NOTHING), ...row, inclusive }];
    }),
  );
  const lines: Line[] = data.sources.flatMap((source) => source.lines);
  const used = COLUMNS.filter(({ of }) => lines.some((line) => of(line, whole)));
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
                        <th class="plain num" scope="col">
                          Line
                        </th>
                        {used.map(({ label, wide }) => (
                          <th class={`plain num ${wide ? "wide" : ""}`} scope="col" key={label}>
                            {label}
                          </th>
                        ))}
                        <th class="plain" scope="col">
                          {source.title}
                          {source.total > 0 && `: ${seconds(source.total / 1e9)}`}
                        </th>
                      </tr>
                    </thead>
                    <tbody>
                      {source.lines.map((line) => {
                        const { number, text, time } = line;
                        const heat = time ? Math.round((time.total / most) * 70) : 0;
                        return (
                          <tr
                            key={number}
                            data-line={number}
                            style={heat ? { background: `color-mix(in srgb, var(--mark) ${heat}%, transparent)` } : undefined}
                          >
                            <td class="num">{number}</td>
                            {used.map(({ label, wide, of }) => (
                              <td class={`num ${wide ? "wide" : ""}`} key={label}>
                                {of(line, whole)}
                              </td>
                            ))}
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
