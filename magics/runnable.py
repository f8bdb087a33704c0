"""The code of a subcommand that runs code: the statement on its line, or the cell below it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from IPython.core.error import UsageError

from jaxtorch.capture.cells.code import LAST_VALUE

from .cells import cell_number
from .report import read_cell, show_from_cell
from .subcommands.table import Invocation


class Runnable(NamedTuple):
    """Code as a function without arguments, and the file name of its frames ("" under another magic)."""

    run: Callable[[], object]
    file: str


def title_of(call: Invocation) -> str:
    """What to call the code: the statement, or the number of the cell."""
    if call.cell is None:
        return str(call.arguments.statement)
    return f"cell [{cell_number(call.shell)}]"


def runnable(call: Invocation, quiet: bool = False) -> Runnable:
    """The cell's body or the statement, ready to run in the user's namespace.

    Args:
        quiet: whether a `%%pure` or `%%jit` below prints no line about each run.
    """
    shell, statement = call.shell, call.arguments.statement
    if call.cell is not None and statement:
        raise UsageError(f"Above a cell only options are allowed, not {statement!r}.")
    body = statement if call.cell is None else call.cell
    if not body.strip():
        raise UsageError(
            "Nothing to run: write a statement on the same line, or use %%jax above a cell with code."
        )
    if body.lstrip().startswith("%%"):  # a cell under another magic
        first, _, inner = body.lstrip().partition("\n")
        name, _, line = first[2:].partition(" ")
        if quiet and name in ("pure", "jit"):
            line = f"-q {line}"
        return Runnable(lambda: shell.run_cell_magic(name, line, inner), "")
    sign = "%jax" if call.cell is None else "%%jax"
    code = read_cell(shell, f"{sign} {call.line}".rstrip(), body)

    def run() -> object:
        names = shell.user_ns
        try:
            exec(code.code, names)
            return names.get(LAST_VALUE)
        except Exception as error:
            show_from_cell(shell, error, code)
            raise
        finally:
            names.pop(LAST_VALUE, None)

    return Runnable(run, code.file)
