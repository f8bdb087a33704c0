// An array as a table of its parts, each with the devices that hold it. A press on a part marks its devices.
import type { Sharding } from "../generated.ts";
import type { ChartProps } from "./index.ts";

const MOST = 64; // rows and columns that are drawn

export function ShardingChart({ data, marks }: ChartProps<Sharding>) {
  const [sides, heads] = [data.sides.slice(0, MOST), data.heads.slice(0, MOST)];
  return (
    <div class="scroll parts" tabIndex={0} role="region" aria-label="Parts of the array">
      <table aria-label="Devices of each part">
        <thead>
          <tr>
            <td />
            {heads.map((head) => (
              <th class="plain" scope="col" key={head}>
                {head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {sides.map((side, r) => (
            <tr key={side}>
              <th scope="row">{side}</th>
              {heads.map((_, c) => {
                const part = data.parts[r]![c]!;
                const pressed = part.some((id) => marks?.chosen.includes(id));
                return (
                  <td key={c} style={{ background: data.colors[r]![c] }}>
                    <button type="button" aria-pressed={pressed} onClick={() => marks?.press(part)}>
                      {data.labels[r]![c]}
                    </button>
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
      {(data.sides.length > MOST || data.heads.length > MOST) && (
        <p class="dim">
          The first {sides.length} × {heads.length} of {data.sides.length} × {data.heads.length} parts.
        </p>
      )}
    </div>
  );
}
