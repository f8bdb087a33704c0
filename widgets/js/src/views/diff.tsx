// Two programs side by side. The kernel says which lines are the same, apart from numbers and names.
import { useEffect, useState } from "preact/hooks";
import { count } from "../format.ts";
import type { ViewProps } from "../frame.tsx";
import { useKept } from "../kept.ts";
import type { DiffData, HloData } from "../generated.ts";
import { breakable } from "../parts.tsx";

const AROUND = 3; // lines that are the same, around each difference
const MOST = 1500; // rows drawn at once

export interface DiffRow {
  left: number | null; // lines of the texts, from 0
  right: number | null;
  same: boolean;
}

export type DiffItem = DiffRow | { hunk: number; hidden: number };

// The rows of a diff. Equal lines are left out unless they are near a difference or their hunk is open.
export function rowsOf(hunks: DiffData["hunks"], open: ReadonlySet<number>): DiffItem[] {
  const items: DiffItem[] = [];
  hunks.forEach(([same, a, b, c, d], i) => {
    if (!same) {
      for (let k = 0; k < Math.max(b - a, d - c); k++) {
        items.push({ left: a + k < b ? a + k : null, right: c + k < d ? c + k : null, same: false });
      }
      return;
    }
    const head = i === 0 ? 0 : AROUND;
    const tail = i === hunks.length - 1 ? 0 : AROUND;
    const whole = open.has(i) || b - a <= head + tail + 1;
    for (let k = 0; k < b - a; k++) {
      if (whole || k < head || k >= b - a - tail) items.push({ left: a + k, right: c + k, same: true });
      else if (k === head) items.push({ hunk: i, hidden: b - a - head - tail });
    }
  });
  return items;
}

export function DiffView({ data, client }: Pick<ViewProps<DiffData>, "data" | "client">) {
  const [open, setOpen] = useKept<ReadonlySet<number>>(client, `open ${data.stage} ${data.first.id}`, new Set());
  const [limit, setLimit] = useState(MOST);
  const items = rowsOf(data.hunks, open);
  const left = data.first.text.split("\n");
  const right = data.second.text.split("\n");
  return (
    <>
      <p class="dim" role="status">
        {data.summary}
      </p>
      <div class="scroll" tabIndex={0} role="region" aria-label={`${data.title}, compared`}>
        <table class="compared mono">
          <thead>
            <tr>
              {[data.first.title, data.second.title].map((title, i) => (
                <th class="plain" scope="col" key={i}>
                  {title}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {items.slice(0, limit).map((item) =>
              "hunk" in item ? (
                <tr key={`h${item.hunk}`}>
                  <td colSpan={2}>
                    <button type="button" class="link" onClick={() => setOpen(new Set([...open, item.hunk]))}>
                      ⋯ {count(item.hidden)} equal lines
                    </button>
                  </td>
                </tr>
              ) : (
                <tr key={`${item.left} ${item.right}`}>
                  <Side text={item.left === null ? null : left[item.left]!} sign={item.same ? "" : "−"} />
                  <Side text={item.right === null ? null : right[item.right]!} sign={item.same ? "" : "+"} />
                </tr>
              ),
            )}
          </tbody>
        </table>
        {items.length > limit && (
          <button type="button" onClick={() => setLimit(limit * 4)}>
            {count(items.length - limit)} more
          </button>
        )}
      </div>
    </>
  );
}

function Side({ text, sign }: { text: string | null; sign: string }) {
  const kind = text === null ? "none" : sign === "−" ? "removed" : sign === "+" ? "added" : "";
  return (
    <td class={kind}>
      {text !== null && sign && <span class="sign">{sign} </span>}
      {text !== null && breakable(text)}
    </td>
  );
}

// The same within `%jax hlo`: with which program, of which stage.
export function AskedDiff({ data, client, names }: { data: HloData; client: ViewProps["client"]; names: Record<string, string> }) {
  const [other, setOther] = useKept(client, "other", data.others[0]![0]);
  const [stage, setStage] = useKept<string>(client, "diff stage", "hlo");
  const [found, setFound] = useState<DiffData | null>(null);
  const [failed, setFailed] = useState("");
  useEffect(() => {
    let wanted = true;
    setFailed("");
    client.ask<DiffData & never>("diff", { other, stage }).then(
      (value) => wanted && setFound(value),
      (error: Error) => wanted && setFailed(error.message),
    );
    return () => void (wanted = false);
  }, [other, stage]);
  return (
    <>
      <div class="bar">
        <label>
          with{" "}
          <select value={String(other)} onChange={(e) => setOther(Number(e.currentTarget.value))}>
            {data.others.map(([id, title]) => (
              <option key={id} value={String(id)}>
                {title}
              </option>
            ))}
          </select>
        </label>
        <label>
          of{" "}
          <select value={stage} onChange={(e) => setStage(e.currentTarget.value)}>
            {data.stages.map((name) => (
              <option key={name} value={name}>
                {names[name] ?? name}
              </option>
            ))}
          </select>
        </label>
        {failed && (
          <span class="bad" role="alert">
            {failed}
          </span>
        )}
      </div>
      {found && <DiffView data={found} client={client} />}
    </>
  );
}
