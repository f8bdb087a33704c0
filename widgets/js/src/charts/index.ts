// The drawings by hand, by the `kind` of their `Chart`. The types demand one for each entry of `CHARTS`
// (scripts/view_types.py).
import type { ComponentType } from "preact";
import type { Charts } from "../generated.ts";
import type { Marks } from "../sections.tsx";
import { PeaksChart } from "./peaks.tsx";
import { ShardingChart } from "./sharding.tsx";

export interface ChartProps<D> {
  data: D;
  marks?: Marks | undefined;
}

export const charts: { [K in keyof Charts]: ComponentType<ChartProps<Charts[K]>> } = {
  peaks: PeaksChart,
  sharding: ShardingChart,
};
