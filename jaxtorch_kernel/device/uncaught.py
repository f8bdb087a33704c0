"""Uncaught errors of a script, printed without frames of jaxtorch (`programs/tracebacks.py`)."""

from __future__ import annotations

import sys
from types import TracebackType

from ..programs.tracebacks import is_ours, release_guards, shortened


def install() -> None:
    """Print uncaught errors in short, unless the program has replaced Python's hook."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print


def _print(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    release_guards(error)
    if not is_ours(error):
        sys.__excepthook__(kind, error, traceback)
        return
    with shortened(error):
        sys.__excepthook__(kind, error, error.__traceback__)
