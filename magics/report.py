"""The messages of `%%pure` and `%%jit`: one line after a run, one short message for an error."""

from __future__ import annotations

import linecache
import re
import traceback
from typing import TYPE_CHECKING

import jax

from jaxtorch.capture.cells.code import CellCode
from jaxtorch.capture.errors import CaptureError
from jaxtorch.programs.site import place
from jaxtorch.programs.untraceable import Untraceable

from .cells import compile_cell

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from jaxtorch.capture.cells.interface import CellOutcome


class CellError(CaptureError):
    """The cell cannot be compiled into one program. Only the message is shown, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"CellError: {self.args[0]}"]


def report(magic: str, outcome: CellOutcome) -> str:
    """The line printed after a run.

    Example:
        >>> from jaxtorch.capture.cells.interface import CellOutcome
        >>> report("pure", CellOutcome(None, 3, 2, False, 1, [], 0.0, 0.0))
        'pure: cached, 3 in, 2 out'
        >>> report("pure", CellOutcome(None, 3, 2, True, 1, [], 0.041, 0.31))
        'pure: traced (1st; 41 ms trace, 310 ms XLA)'
        >>> report("pure", CellOutcome(None, 3, 2, True, 2, ["images[0] 32 -> 64"], 0.041, 0.31))
        'pure: retraced: images[0] 32 -> 64 (2nd; 41 ms trace, 310 ms XLA)'
    """
    if outcome.plain:
        return f"{magic}: ran as plain Python: {outcome.reasons[0]}"
    if not outcome.traced:
        return f"{magic}: cached, {outcome.inputs} in, {outcome.outputs} out"
    what = "traced" if outcome.nth == 1 and not outcome.reasons else "retraced"
    if outcome.reasons:
        more = len(outcome.reasons) - 2
        what += ": " + ", ".join(outcome.reasons[:2]) + (f" and {more} more" if more > 0 else "")
    times = f"{outcome.trace_seconds * 1e3:.0f} ms trace, {outcome.xla_seconds * 1e3:.0f} ms XLA"
    return f"{magic}: {what} ({_ordinal(outcome.nth)}; {times})"


def _ordinal(n: int) -> str:
    ending = "th" if n // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


# A pattern for source lines that need the value of a tensor -> what to write instead.
_ADVICE = (
    (
        r"\b(if|while|elif|assert)\b",
        "The program runs for all values: write torch.where(condition, a, b) or torch.cond; "
        "or name the tensor in --static, and the cell is retraced for each value.",
    ),
    (
        r"\bprint\b",
        'Print it in the next cell, or write jaxtorch.debug.print("{}", x), which prints at every run.',
    ),
    (
        r"\bnonzero\b|\[.*[<>=].*\]",
        "Sizes are fixed in a compiled program: keep all elements with torch.where(mask, x, 0), or select "
        "in the next cell.",
    ),
    (
        r"",
        "Keep it a tensor and read its value in the next cell; or name the tensor it comes from in --static.",
    ),
)


def _advice(error: CaptureError, source: str) -> str:
    if not isinstance(error.__context__, Untraceable | jax.errors.ConcretizationTypeError):
        return error.advice
    return next(advice for pattern, advice in _ADVICE if re.search(pattern, source))


def read_cell(shell: InteractiveShell, first_line: str, body: str) -> CellCode:
    """`compile_cell`, with a short message for a syntax error.

    Raises:
        CellError: the cell is not valid Python.
    """
    try:
        return compile_cell(shell, first_line, body)
    except SyntaxError as error:
        raise _syntax_error(error, [*first_line.splitlines(), *body.splitlines()]) from None


def _syntax_error(error: SyntaxError, lines: list[str]) -> CellError:
    line = error.lineno or 1
    source = lines[line - 1].strip() if line <= len(lines) else ""
    result = CellError(f"the cell is not valid Python: {error.msg}", "", None, line)
    result.args = (f"{result.what}\n    line {line}: {source}",)
    return result


def cell_error(error: CaptureError, code: CellCode) -> CellError:
    """The error that the user sees: what happened, where in the cell, and what to write instead."""
    lines = []
    source = ""
    line = _line_in_cell(error, code)
    if line is not None:
        source = code.lines[line - 1].strip() if line <= len(code.lines) else ""
        lines.append(f"    {place(code.file, line)}: {source}")
    if error.file is not None and error.line is not None and error.file != code.file:
        source = linecache.getline(error.file, error.line).strip()
        lines.append(
            f"    in a function called from there, {place(error.file, error.line)}: {source}"
        )
    text = "\n".join([error.what, *lines, _advice(error, source)])
    result = CellError(error.what, error.advice, error.file, line)
    result.args = (text,)
    return result


def _line_in_cell(error: CaptureError, code: CellCode) -> int | None:
    if error.file == code.file:
        return error.line
    current: BaseException | None = error
    while current is not None:
        lines = [n for f, n in traceback.walk_tb(current.__traceback__) if f.f_code is code.code]
        if lines:
            return lines[-1]
        current = current.__context__
    return None


def show_from_cell(shell: InteractiveShell, error: BaseException, code: CellCode) -> None:
    """Make IPython start the traceback of an error in user code at the cell's own frame, without jaxtorch's frames."""
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code is not code.code:
        tb = tb.tb_next
    if tb is None:
        return
    first = tb

    def render() -> list[str]:
        return shell.InteractiveTB.structured_traceback(type(error), error, first, tb_offset=0)

    error._render_traceback_ = render  # type: ignore[attr-defined]
