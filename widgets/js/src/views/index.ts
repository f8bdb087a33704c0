// The live forms by the `kind` of their view.
import type { ComponentType } from "preact";
import { CacheView } from "./cache.tsx";
import { DevicesView } from "./devices.tsx";
import { DiffView } from "./diff.tsx";
import { HloView } from "./hlo.tsx";
import { LinesView } from "./lines.tsx";
import { MemoryView } from "./memory.tsx";
import { ProfileView } from "./profile.tsx";
import { TableView } from "./table.tsx";

// Each form knows the shape of its own data.
export const kinds: Record<string, ComponentType<never>> = {
  cache: CacheView,
  devices: DevicesView,
  diff: DiffView,
  hlo: HloView,
  lines: LinesView,
  memory: MemoryView,
  profile: ProfileView,
  table: TableView,
};
