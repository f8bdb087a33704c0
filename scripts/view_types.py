"""Write the TypeScript types of the views' payloads, and the table of units, from the Python that defines them.

`python -m scripts.view_types` writes `widgets/js/src/generated.ts`; `make widgets` begins with it. A test fails if the
file is out of date.
"""

from __future__ import annotations

import json
from pathlib import Path

from jaxtorch.widgets import devices, diff, hlo_data, memory, page, profile_data, units
from jaxtorch.widgets.schema import typescript

FILE = Path(__file__).parents[1] / "widgets" / "js" / "src" / "generated.ts"

# The data of each live drawing, by `Chart.kind`.
CHARTS: dict[str, type] = {"sharding": devices.Sharding, "peaks": memory.Peaks}

# The `data()` of views whose live form is written by hand, by `View.kind`.
KINDS: dict[str, type] = {
    "hlo": hlo_data.HloData,
    "diff": diff.DiffData,
    "profile": profile_data.ProfileData,
}

# The types of these views' answers.
ANSWERS: tuple[type, ...] = (
    page.File,
    hlo_data.SourceLines,
    hlo_data.StageAnswer,
    hlo_data.GraphAnswer,
    hlo_data.InstructionAnswer,
    hlo_data.CostRow,
)

_HEAD = """\
// Written by scripts/view_types.py from the dataclasses in widgets/*.py: `make widgets`. Do not edit.
import type { Json } from "./protocol.ts";
"""


def generated() -> str:
    """The content of the file."""
    names = {"Charts": CHARTS, "Kinds": KINDS}
    tables = [
        "".join(
            [
                f"export interface {name} {{\n",
                *(f"  {k}: {t.__name__};\n" for k, t in of.items()),
                "}\n",
            ]
        )
        for name, of in names.items()
    ]
    roots = [page.Page, page.Row, *CHARTS.values(), *KINDS.values(), *ANSWERS]
    scales = "".join(
        f"  {unit}: {json.dumps(steps, ensure_ascii=False)},\n"
        for unit, steps in units.SCALES.items()
    )
    return "\n".join(
        [
            _HEAD,
            f"export type Section = {' | '.join(t.__name__ for t in page.SECTIONS)};\n",
            f"export const SCALES = {{\n{scales}}} as const;\n",
            *tables,
            typescript(roots),
        ]
    )


if __name__ == "__main__":
    FILE.write_text(generated(), encoding="utf-8")
