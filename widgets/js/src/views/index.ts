// The live forms by the `kind` of their view.
import type { ComponentType } from "preact";
import { TableView } from "./table.tsx";

// Each form knows the shape of its own data.
export const kinds: Record<string, ComponentType<never>> = {
  table: TableView,
};
