// `kind = "table"`: rows under named columns, for views that are no more than that.
import type { ViewProps } from "../frame.tsx";
import { useKept } from "../kept.ts";
import { Filter } from "../parts.tsx";
import type { Data } from "../protocol.ts";
import type { TableData } from "../shapes.ts";
import { Table, type Cell, type Column } from "../table.tsx";

export function TableView({ data, client }: ViewProps<TableData>) {
  const [filter, setFilter] = useKept(client, "filter", "");
  const columns: Column<Data>[] = data.columns.map((c) => ({ ...c, value: (row) => row[c.key] as Cell }));
  return (
    <>
      <div class="bar">
        <span class="title">{data.title}</span>
        <span class="space" />
        <Filter value={filter} set={setFilter} of={data.title} />
      </div>
      <Table client={client} name={data.title} rows={data.rows} columns={columns} id={(r) => r["id"] as string} filter={filter} />
    </>
  );
}
