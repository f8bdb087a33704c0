"""How a notebook shows errors: the user's frames as IPython shows them, those of libraries in one line each.

IPython shows five lines of code around each frame, which for a mistake in `model(x)` fills a screen with torch's code.
Frames of jaxtorch are left out (`jaxtorch.programs.tracebacks`). Errors that passed neither through jaxtorch nor
through torch look as before.
"""

from __future__ import annotations

import os
import re
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from jaxtorch.base.options import config
from jaxtorch.programs.site import is_user_file
from jaxtorch.programs.tracebacks import is_ours, release_guards, shortened, shown_part

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_COLOR = re.compile(r"\x1b\[[\d;]*m")
# The first line of a frame, and the line that was running.
_HEADER = re.compile(r"File (?P<file>.+?):\d+(, in [^(]*(?P<arguments>\(.*\)))?")
_RUNNING = re.compile(r"-+> ?\d+ (?P<indent> *)")
_INSTALLED = re.compile(r".*[/\\](site|dist)-packages[/\\]")


class Formatter(Protocol):
    """IPython's `structured_traceback`: the parts of what is shown, one string for each frame."""

    def __call__(
        self,
        etype: type[BaseException],
        evalue: BaseException | None,
        etb: TracebackType | None = None,
        tb_offset: int | None = None,
        context: int = 5,
    ) -> list[str]: ...


class ShortFormatter:
    """Formats errors as IPython does, without the frames that do not concern the user."""

    def __init__(self, shell: InteractiveShell, format: Formatter):
        self._shell, self._format = shell, format

    def __call__(
        self,
        etype: type[BaseException],
        evalue: BaseException | None,
        etb: TracebackType | None = None,
        tb_offset: int | None = None,
        context: int = 5,
    ) -> list[str]:
        release_guards(evalue)
        if config.tracebacks == "full" or not is_ours(evalue, ("torch",)):
            return self._format(etype, evalue, etb, tb_offset, context)
        given = shown_part(etb) if isinstance(etb, TracebackType) else etb
        with shortened(evalue):
            parts = self._format(etype, evalue, given, tb_offset, context)
        if self._shell.InteractiveTB.mode != "Context":
            return parts
        short = [_in_short(part) for part in parts]
        last = [following is None for following in [*short[1:], None]]
        return [
            part if lines is None else lines + "\n" * ends  # a blank line after the last of them
            for part, lines, ends in zip(parts, short, last, strict=True)
        ]


def _in_short(part: str) -> str | None:
    """File, function and running line of a library's frame; None for other parts of a traceback."""
    first, *lines = part.splitlines() or [""]
    header = _HEADER.match(_plain(first))
    if header is None or is_user_file(os.path.expanduser(header["file"])):
        return None
    if folder := _INSTALLED.match(header["file"]):
        first = first.replace(folder[0], "", 1)
    first = first.replace(header["arguments"] or "", "", 1)
    running = [
        line.replace(match["indent"], "", 1)
        for line in lines
        if (match := _RUNNING.match(_plain(line)))
    ]
    return "\n".join([first, *running]) if running else None


def _plain(text: str) -> str:
    return _COLOR.sub("", text)


def start(shell: InteractiveShell) -> None:
    """Make a shell show errors short."""
    stop(shell)
    formatter = shell.InteractiveTB
    setattr(formatter, _NAME, ShortFormatter(shell, formatter.structured_traceback))


def stop(shell: InteractiveShell) -> None:
    """Make a shell show errors as it did before `start`."""
    if isinstance(vars(shell.InteractiveTB).get(_NAME), ShortFormatter):
        delattr(shell.InteractiveTB, _NAME)


_NAME = "structured_traceback"
