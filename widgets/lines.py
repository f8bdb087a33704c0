"""`%%jax lines`: the source code with the device time of each line, in the style of `%lprun`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from . import profile_page
from .profiled import ProfiledView
from .units import amount, duration, share, size

if TYPE_CHECKING:
    from jaxtorch.insight.profile.sources import Source

_WIDTH = 120


def _title(source: Source) -> str:
    """The title of a source; a cell that only calls others has no time of its own."""
    return f"{source.title}: {duration(source.total)}" if source.total else source.title


class LinesView(ProfiledView):
    """The lines of a `Profile`.

    | key | what it holds |
    | --- | --- |
    | `version` | 1 |
    | `title`, `repeat`, `wall`, `device` | as in `ProfileView` |
    | `sources` | `file`, `cell` (number or null), `title`, `total`, `lines` |
    | `sources[].lines` | `number`, `text`, `time` (null if the line did nothing on the device), `inclusive` |
    | `unattributed` | nanoseconds that belong to no line |

    `inclusive` is the time in nanoseconds of the line and everything it called, or null. A time is `total`, `backward`,
    `inferred` (ns; the last two are parts of the first), `count`, `flops`, `bytes`.
    """

    kind: ClassVar[str] = "lines"

    def text(self) -> str:
        profile = self.profile
        runs = f", mean of {profile.repeat} runs" if profile.repeat > 1 else ""
        parts = [
            f"Time on the device: {duration(profile.device)} of {duration(profile.wall)}{runs}"
        ]
        parts += [self._source(source) for source in self.sources()]
        if profile.unattributed.total:
            rest = profile.unattributed.total
            parts.append(f"{duration(rest)} ({share(rest, profile.device)}) belong to no line.")
        return "\n\n".join(parts)

    def _source(self, source: Source) -> str:
        profile = self.profile
        head = f"{'line':>5} {'device':>9} {'share':>8} {'inclusive':>9} {'times':>6} {'ops':>7} {'bytes':>9}"
        rows = [_title(source), f"{head}  code", "-" * (len(head) + 6)]
        before = 0
        for line in source.lines:
            if before and line.number != before + 1:
                rows.append("  ...")
            before = line.number
            own, rest = " " * 18, " " * 24
            called = "" if line.inclusive is None else duration(line.inclusive.total)
            if line.time is not None:
                time = line.time
                mark = "~" if time.inferred > 0.05 * time.total else ""
                own = f"{mark + duration(time.total):>9} {share(time.total, profile.device):>8}"
                rest = f"{time.count:>6.0f} {amount(time.flops):>7} {size(time.bytes):>9}"
            rows.append(f"{line.number:>5} {own} {called:>9} {rest}  {line.text}".rstrip()[:_WIDTH])
        return "\n".join(rows)

    def html(self) -> str:
        profile = self.profile
        return (
            f'<div style="font-size:13px">Time on the device: {duration(profile.device)} of {duration(profile.wall)}'
            f"{profile_page.source_tables(profile, self.sources())}</div>"
        )

    def data(self) -> dict[str, Any]:
        return {
            "version": 1,
            "title": self.title,
            "repeat": self.profile.repeat,
            "wall": self.profile.wall,
            "device": self.profile.device,
            "sources": [
                {
                    "file": source.file,
                    "cell": source.cell,
                    "title": source.title,
                    "total": source.total,
                    "lines": [
                        {
                            "number": line.number,
                            "text": line.text,
                            "time": None if line.time is None else asdict(line.time),
                            "inclusive": None if line.inclusive is None else line.inclusive.total,
                        }
                        for line in source.lines
                    ],
                }
                for source in self.sources()
            ],
            "unattributed": self.profile.unattributed.total,
        }
