// What a view and its live form say to each other. The other side, with the whole story, is `widgets/protocol.py`.

export const VERSION = 1;

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type Data = Record<string, Json>;

export type Change = { $value: Json } | { $gone: true } | { $rows: Data[]; $order: (string | number)[] };

export type FromKernel =
  | { v: number; type: "bundle"; hash: string }
  | { v: number; type: "state"; revision: number; kind: string; data: Data }
  | { v: number; type: "patch"; revision: number; changes: Record<string, Change> }
  | { v: number; type: "answer"; id: number; value: Json }
  | { v: number; type: "error"; id: number | null; message: string }
  | { v: number; type: "end" };

export type FromPage =
  | { type: "bundle" }
  | { type: "open" }
  | { type: "close" }
  | { type: "ask"; id: number; ask: string; arguments: Data };

export const message = (body: FromPage): FromPage & { v: number } => ({ v: VERSION, ...body });

// The state after a patch. Values that did not change stay the same objects, so that nothing is drawn twice.
export function applied(data: Data, changes: Record<string, Change>): Data {
  const next: Data = { ...data };
  for (const [name, change] of Object.entries(changes)) {
    if ("$gone" in change) delete next[name];
    else if ("$value" in change) next[name] = change.$value;
    else {
      const rows = new Map(((data[name] as Data[] | undefined) ?? []).map((row) => [row["id"], row]));
      for (const row of change.$rows) rows.set(row["id"], row);
      next[name] = change.$order.map((id) => rows.get(id)).filter((row) => row !== undefined);
    }
  }
  return next;
}
