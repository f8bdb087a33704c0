"""Tab completion of the subcommands of `%jax`, and of the options of `%%pure` and `%%jit`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)

from jaxtorch.capture.dependencies.reads import names_read

from .cell_magics import OPTIONS, PRECISIONS
from .subcommands import SUBCOMMANDS

_LINE = re.compile(r"(?:^|[\s=])%%?jax\s+(?P<before>(?:\S+\s+)*)(?P<word>\S*)$")
_CELL = re.compile(r"^%%(?:pure|jit)\s+(?P<before>(?:\S+\s+)*)(?P<word>\S*)$")


@context_matcher(identifier="jaxtorch")
def complete_jax(context: CompletionContext) -> SimpleMatcherResult:
    """The completions for a `%jax` line or the line of a cell magic. They suppress all other completions."""
    line = context.line_with_cursor[: context.cursor_position]
    match = _LINE.search(line)
    if match is not None:
        return _result(_after(match["before"].split()), match["word"])
    match = _CELL.search(line) if context.cursor_line == 0 else None
    if match is None:
        return {"completions": []}
    option = next((w for w in reversed(match["before"].split()) if w.startswith("-")), None)
    if option == "--precision" and match["before"].split()[-1] == option:
        return _result(PRECISIONS, match["word"])
    names = _names(context.full_text) if option in ("--static", "--donate") else ()
    return _result((*names, *OPTIONS), match["word"])


def _after(before: list[str]) -> Iterable[str]:
    """The words that may come next on a `%jax` line."""
    if not before:
        return SUBCOMMANDS
    subcommand = SUBCOMMANDS.get(before[0])
    return () if subcommand is None else (*subcommand.names(), *subcommand.options)


def _names(cell: str) -> tuple[str, ...]:
    """The names that a cell reads. There are none while the cell is not valid Python."""
    try:
        code = compile(cell.partition("\n")[2], "", "exec")
    except SyntaxError:
        return ()
    return names_read(code).globals


def _result(choices: Iterable[str], start: str) -> SimpleMatcherResult:
    return {
        "completions": [
            SimpleCompletion(text=w, type="magic") for w in choices if w.startswith(start)
        ],
        "matched_fragment": start,
        "suppress": True,
        "ordered": True,
    }
