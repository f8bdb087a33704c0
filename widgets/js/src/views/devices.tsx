// `%jax devices`: the devices, and which part of an array lies on which. A press on either marks the other.
import type { ViewProps } from "../frame.tsx";
import { useKept } from "../kept.ts";
import type { DevicesData } from "../shapes.ts";
import { Table, type Column } from "../table.tsx";

type Device = DevicesData["devices"][number];
type Drawing = NonNullable<DevicesData["drawing"]>;

const MOST = 64; // rows and columns that are drawn

const COLUMNS: Column<Device>[] = [
  { key: "name", label: "Device", value: (d) => d.name, draw: (d) => <span class="mono">{d.name}</span> },
  { key: "id", label: "Number", kind: "count", value: (d) => d.id },
  { key: "kind", label: "Chip", value: (d) => d.kind },
  { key: "process", label: "Process", wide: true, value: (d) => `${d.process}${d.here ? "" : " (another)"}` },
  { key: "held", label: "Held", kind: "bytes", says: "by the arrays that live on it", value: (d) => d.held },
  { key: "used", label: "Used", kind: "bytes", says: "as XLA says", value: (d) => d.used },
  { key: "limit", label: "Limit", kind: "bytes", value: (d) => d.limit },
  { key: "share", label: "Share", kind: "share", value: (d) => (d.used !== null && d.limit ? d.used / d.limit : null) },
];

export function DevicesView({ data, client }: ViewProps<DevicesData>) {
  const [chosen, setChosen] = useKept<readonly number[]>(client, "chosen", []); // ids of devices
  const press = (ids: readonly number[]): void => setChosen(String(ids) === String(chosen) ? [] : ids);
  const { drawing, devices } = data;
  const columns = COLUMNS.filter(({ key, value }) =>
    key === "process" ? devices.some((d) => value(d) !== value(devices[0]!)) : devices.some((d) => value(d) !== null),
  );
  return (
    <>
      {data.gone && (
        <p class="notice" role="status">
          {data.gone}; this is how it lay last.
        </p>
      )}
      {drawing && (
        <>
          <div class="bar">
            <span class="title mono">{data.title}</span>
          </div>
          <Parts of={drawing} chosen={chosen} press={press} />
        </>
      )}
      {!drawing && (
        <div class="bar">
          <span class="title">
            {devices.length} device{devices.length === 1 ? "" : "s"}
          </span>
        </div>
      )}
      <Table
        client={client}
        name="Devices"
        rows={devices}
        columns={columns}
        id={(d) => d.id}
        selected={drawing ? (d) => chosen.includes(d.id) : undefined}
        onSelect={drawing ? (d) => press([d.id]) : undefined}
      />
    </>
  );
}

const range = (cut: readonly [number, number], axis: number | null): string => (axis === null ? "" : `${cut[0]}:${cut[1]}`);

// The array as a table of its parts, each with the devices that hold it.
function Parts({ of, chosen, press }: { of: Drawing; chosen: readonly number[]; press: (ids: readonly number[]) => void }) {
  const [rows, columns] = [of.rows.slice(0, MOST), of.columns.slice(0, MOST)];
  const [down, across] = of.axes;
  return (
    <div class="scroll parts" tabIndex={0} role="region" aria-label="Parts of the array">
      <table aria-label="Devices of each part">
        <thead>
          <tr>
            <td />
            {columns.map((cut) => (
              <th class="plain" scope="col" key={cut[0]}>
                {range(cut, across)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((cut, r) => (
            <tr key={cut[0]}>
              <th scope="row">{range(cut, down)}</th>
              {columns.map((_, c) => {
                const part = of.parts[r]![c]!;
                return (
                  <td key={c} style={{ background: of.colors[r]![c] }}>
                    <button type="button" aria-pressed={part.some((id) => chosen.includes(id))} onClick={() => press(part)}>
                      {of.labels[r]![c]}
                    </button>
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
      {(of.rows.length > MOST || of.columns.length > MOST) && (
        <p class="dim">
          The first {rows.length} × {columns.length} of {of.rows.length} × {of.columns.length} parts.
        </p>
      )}
    </div>
  );
}
