// The memory of each cell as a bar: up to its peak, and the part that the cell left behind.
import { bytes } from "../format.ts";
import type { Peaks } from "../generated.ts";
import type { ChartProps } from "./index.ts";

export function PeaksChart({ data: { cells } }: ChartProps<Peaks>) {
  if (cells.length < 2) return null;
  const shown = cells.slice(-60);
  const most = Math.max(...shown.map((c) => c.peak), 1);
  const [width, height] = [10 * shown.length, 60];
  const bar = (i: number, size: number) => {
    const tall = (size / most) * (height - 2);
    return { x: 10 * i + 1, width: 8, y: height - tall, height: tall };
  };
  const label = `Memory of the last ${shown.length} cells, at most ${bytes(most)}`;
  return (
    <svg class="peaks" width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={label}>
      {shown.map((c, i) => (
        <g key={c.id}>
          <title>{`cell ${c.cell}: peak ${bytes(c.peak)}, after ${bytes(c.after)}`}</title>
          <rect {...bar(i, c.peak)} fill="var(--mark2)" stroke="var(--line)" />
          <rect {...bar(i, c.after)} fill="var(--bar)" />
        </g>
      ))}
    </svg>
  );
}
