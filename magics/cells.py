"""The lines of magics, and the text of a cell: compiled with the shell's own input transformations and compiler."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from jaxtorch.capture.cells.code import CellCode, code_of

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
