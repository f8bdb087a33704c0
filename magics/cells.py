"""The lines of magics, and the text of a cell: compiled with the shell's own input transformations and compiler."""

from __future__ import annotations

import ast
import linecache
import re
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from jaxtorch.capture.cells.code import CellCode, code_of
from jaxtorch.programs import site

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def compile_cell(shell: InteractiveShell, first_line: str, body: str) -> CellCode:
    """Compile the body of a cell magic.

    Args:
        shell: provides the input transformations and compiler flags.
        first_line: the magic's own line, or several lines if it is below another magic.
        body: the text below.

    Raises:
        SyntaxError: the body is not valid Python.
    """
    if body.lstrip().startswith("%%"):
        inner = body.split()[0]
        raise UsageError(
            f"The lines under `{first_line.splitlines()[-1].split()[0]}` must be Python: {inner} is another cell magic."
        )
    empty = 0
    for line in body.splitlines():
        if line.strip():
            break
        empty += 1
    source = "\n" * empty + shell.transform_cell(body)
    typed, text = f"{first_line}\n{body}", f"{first_line}\n{source}"
    if len(typed.splitlines()) == len(text.splitlines()):
        text = typed  # what views and tracebacks show: `!ls`, and not the call that replaces it
    file = shell.compile.cache(text, cell_number(shell), raw_code=typed)
    tree = ast.parse("\n" * len(first_line.splitlines()) + source, file)
    tree = shell.transform_ast(tree)
    compiler: Any = shell.compile  # its stub lacks that it also takes trees
    return code_of(tree, text.splitlines(), lambda module: compiler(module, file, "exec"))


class Typed:
    """Maps the file of a cell to the lines that were typed, if they differ from those that Python runs."""

    def __init__(self, shell: InteractiveShell):
        self._shell = shell
        self._lines: dict[str, list[str] | None] = {}

    def __call__(self, file: str) -> list[str] | None:
        if file not in self._lines:
            number = site.cell_number(file)
            if number is None:
                return None
            self._lines[file] = self._found(file, number)
        return self._lines[file]

    def _found(self, file: str, number: int) -> list[str] | None:
        history = self._shell.history_manager
        typed = history.input_hist_raw if history is not None else []
        run = "".join(linecache.getlines(file))
        if "get_ipython()" not in run or number >= len(typed):
            return None
        # Each line must stay where it is, and the text must be that of the file: a cell may run another.
        lines = typed[number].splitlines()
        same = self._shell.transform_cell(typed[number]).rstrip() == run.rstrip()
        return lines if same and len(lines) == len(run.splitlines()) else None


def uncommented(line: str) -> str:
    """A magic's line without its trailing comment, which IPython does not strip.

    Example:
        >>> uncommented("seed 0  # as ever"), uncommented("hlo #3")
        ('seed 0', 'hlo #3')
    """
    return re.split(r"(?:^|\s)#\s", line, maxsplit=1)[0].rstrip()


def cell_number(shell: InteractiveShell) -> int:
    """The number in the prompt of the running cell. (`shell.execution_count` is already that of the next cell.)"""
    running = getattr(shell.displayhook, "exec_result", None)
    return shell.execution_count if running is None else running.execution_count
