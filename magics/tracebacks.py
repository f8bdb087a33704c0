"""Errors in a notebook: the user's frames as IPython shows them, the frames of libraries in short.

IPython shows five lines of code around each frame, so a mistake in `model(x)` fills a screen with torch's code. Frames
of jaxtorch are omitted (`jaxtorch.programs.tracebacks`). Errors that passed through neither jaxtorch nor torch are
unchanged.
"""

from __future__ import annotations

import os
import re
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from jaxtorch.base.options import config
from jaxtorch.programs.site import cell_number, is_engine_file, is_user_file, place
from jaxtorch.programs.tracebacks import (
    is_ours,
    passes_on,
    release_guards,
    shortened,
    shown_part,
)

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_COLOR = re.compile(r"\x1b\[[\d;]*m")
# The first line of a frame, and the line that was running.
_HEADER = re.compile(r"File (?P<file>.+?):\d+(, in [^(]*(?P<arguments>\(.*\)))?")
_RUNNING = re.compile(r"-+> ?\d+ (?P<indent> *)")
# A message of torch's compiler: its advice to developers, and the frames of the code that it read.
_COMPILED = "\nfrom user code:\n"
_FOR_DEVELOPERS = (
    re.compile(r"^  Developer debug context:.*?(?=^from user code)", re.MULTILINE | re.DOTALL),
    re.compile(r"^Set TORCHDYNAMO_VERBOSE=1.*?$\n*", re.MULTILINE),
)
_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_CODE = re.compile(
    rf"^ +{_LINE.pattern}, in (?P<function>\S+)\n(?:(?! +File ) .*\n)*", re.MULTILINE
)
_INSTALLED = re.compile(r".*[/\\](site|dist)-packages[/\\]")


class Formatter(Protocol):
    """IPython's `structured_traceback`, which returns one string for each frame."""

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
        parts[-1] = _message(parts[-1])
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


def _message(text: str) -> str:
    """The message, with names of cells instead of their files, without the hints of torch's compiler to its developers.

    The compiler also lists the frames of the code that it read. Frames of jaxtorch, and those that only pass a call on,
    are removed from this list too.
    """
    if _COMPILED in text:
        for pattern in _FOR_DEVELOPERS:
            text = pattern.sub("", text)
        text = _CODE.sub(lambda m: "" if _is_hidden(m["file"], m["function"]) else m[0], text)
        text = text.rstrip("\n")
    return _LINE.sub(_place, text)


def _place(line: re.Match[str]) -> str:
    """A line of a cell as IPython names it, one of a library without the folder that it is installed in."""
    file, number = line["file"], int(line["line"])
    if cell_number(file) is None and (folder := _INSTALLED.match(file)):
        return f'File "{file.removeprefix(folder[0])}", line {number}'
    return line[0] if cell_number(file) is None else place(file, number)


def _is_hidden(file: str, function: str) -> bool:
    return is_engine_file(file) or passes_on(file, function)


def _plain(text: str) -> str:
    return _COLOR.sub("", text)


def start(shell: InteractiveShell) -> None:
    """Make a shell show short errors."""
    stop(shell)
    formatter = shell.InteractiveTB
    setattr(formatter, _NAME, ShortFormatter(shell, formatter.structured_traceback))


def stop(shell: InteractiveShell) -> None:
    """Make a shell show errors as it did before `start`."""
    if isinstance(vars(shell.InteractiveTB).get(_NAME), ShortFormatter):
        delattr(shell.InteractiveTB, _NAME)


_NAME = "structured_traceback"
