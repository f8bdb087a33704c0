"""What a script prints of an uncaught error: no frames of jaxtorch (`programs/tracebacks.py`)."""

from __future__ import annotations

import sys
from types import TracebackType

from ..programs.tracebacks import is_ours, release_guards, shortened


def install() -> None:
    """Print uncaught errors short, unless something else than Python prints them."""
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
