// The roofline of a profile.
import { amount, bytes, share } from "./format.ts";
import type { ProfileData } from "./generated.ts";
import type { Row } from "./views/profile.tsx";

const SECOND = 1e9; // in nanoseconds

// Each line under the device's roof; both axes are logarithmic.
export function Roofline({ rows, peak }: { rows: readonly Row[]; peak: NonNullable<ProfileData["peak"]> }) {
  const points = rows
    .filter((r) => r.flops > 0 && r.bytes > 0 && r.total > 0)
    .map((r) => ({ name: r.says, intensity: r.flops / r.bytes, speed: r.flops / (r.total / SECOND) }));
  if (points.length === 0) return <p class="dim">No line has a known number of FLOPs.</p>;
  const [width, height, pad] = [520, 260, 40];
  const ridge = peak.flops / peak.bandwidth;
  const lowest = Math.min(ridge, ...points.map((p) => p.intensity)) / 3;
  const highest = Math.max(ridge, ...points.map((p) => p.intensity)) * 3;
  const slowest = Math.min(peak.flops, ...points.map((p) => p.speed)) / 3;
  const along = (v: number, low: number, high: number, from: number, to: number): number =>
    from + ((Math.log10(v) - Math.log10(low)) / (Math.log10(high) - Math.log10(low))) * (to - from);
  const x = (v: number): number => along(v, lowest, highest, pad, width - 8);
  const y = (v: number): number => along(v, slowest, peak.flops * 2, height - pad, 8);
  const limit = (v: number): number => Math.min(peak.flops, v * peak.bandwidth);
  const roof = [lowest, ridge, highest].map((v) => `${x(v)},${y(Math.max(limit(v), slowest))}`).join(" ");
  return (
    <figure class="roofline">
      <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={`Roofline of ${peak.name}`}>
        <polyline points={roof} fill="none" stroke="var(--fg)" stroke-width="1.5" />
        <line x1={pad} y1={height - pad} x2={width - 8} y2={height - pad} stroke="var(--line)" />
        <line x1={pad} y1={8} x2={pad} y2={height - pad} stroke="var(--line)" />
        {points.map((p, i) => (
          <circle key={i} cx={x(p.intensity)} cy={y(p.speed)} r="4" fill="var(--accent)" fill-opacity="0.7">
            <title>{`${p.name}: ${amount(p.speed)}FLOP/s, ${share(p.speed / limit(p.intensity))} of the limit`}</title>
          </circle>
        ))}
        <text x={width / 2} y={height - 12} text-anchor="middle" fill="var(--dim)" font-size="11">
          FLOPs a byte
        </text>
        <text x={14} y={height / 2} text-anchor="middle" fill="var(--dim)" font-size="11" transform={`rotate(-90 14 ${height / 2})`}>
          FLOP/s
        </text>
      </svg>
      <figcaption class="dim">
        {peak.name}: {amount(peak.flops)}FLOP/s, {bytes(peak.bandwidth)}/s. A point is a line; the nearer to the roof, the better.
      </figcaption>
    </figure>
  );
}
