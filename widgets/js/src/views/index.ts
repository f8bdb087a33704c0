// The live forms by the `kind` of their view.
import type { FunctionComponent } from "preact";
import type { ViewProps } from "../frame.tsx";
import type { Kinds } from "../generated.ts";
import { DiffView } from "./diff.tsx";
import { HloView } from "./hlo.tsx";
import { PageView } from "./page.tsx";
import { ProfileView } from "./profile.tsx";

// The types demand a form for each entry of `KINDS` (scripts/view_types.py), for the data that the kernel sends.
type Forms = { [K in keyof Kinds]: FunctionComponent<ViewProps<Kinds[K]>> };

const byHand: Forms = {
  diff: DiffView,
  hlo: HloView,
  profile: ProfileView,
};

export const kinds: Record<string, FunctionComponent<never>> = { ...byHand, page: PageView };
