"""Results of the library that a notebook shows as a view when they end a cell: a fit report, a plan.

The library has no widgets, so its results print as text. While the extension is loaded, IPython asks here first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxtorch.insight.fit.report import Fit
from jaxtorch.insight.plan import Plan
from jaxtorch.widgets.fit import FitView
from jaxtorch.widgets.plan import PlanView
from jaxtorch.widgets.view import View

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_VIEWS: dict[type, Callable[[Any], View]] = {Fit: FitView, Plan: PlanView}


def start(shell: InteractiveShell) -> None:
    """Show the results as views in this shell."""
    for kind, view in _VIEWS.items():
        _formatter(shell).for_type(kind, lambda value, view=view: view(value)._repr_mimebundle_())


def stop(shell: InteractiveShell) -> None:
    """Show them as text again."""
    for kind in _VIEWS:
        _formatter(shell).pop(kind, None)


def _formatter(shell: InteractiveShell) -> Any:
    assert shell.display_formatter is not None
    return shell.display_formatter.mimebundle_formatter
