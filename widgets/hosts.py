"""Detects the front end that shows a session's views, and what it can do.

| front end | recognised by | a view's page | updates while a cell runs |
| --- | --- | --- | --- |
| a terminal | no kernel | text | no |
| JupyterLab, Notebook 7 | a kernel, nothing else | made live in place | yes |
| VS Code | the variable `__vsc_ipynb_file__` that it sets, or its environment | a widget | yes |
| Colab | its module `google.colab` | a widget | when the cell ends |
| a process of a cluster | ipyparallel's module for engines | HTML | no |

JupyterLab and Notebook keep all outputs of a notebook in one page. There, the output of a view is plain HTML, also in
the notebook file. A widget that is not displayed itself finds this HTML in the page and makes it live. So a notebook
that is reopened without its kernel shows the HTML, and not "Loading widget". VS Code and Colab isolate outputs in
frames. There, the output contains the same HTML and also names the widget.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class Host:
    """A front end.

    Attributes:
        name: "terminal", "lab", "vscode", "colab" or "engine" (of ipyparallel).
        live: whether views can be live: there is a kernel, and anywidget is installed.
        in_place: whether a widget can reach the page's outputs, so that it can make plain HTML live.
        flush: whether messages from other threads are shown only when a cell ends.
    """

    name: str
    live: bool
    in_place: bool
    flush: bool = False


def host(shell: InteractiveShell | None = None, environ: Mapping[str, str] = os.environ) -> Host:
    """The front end of this session, or of `shell` if given."""
    shell = shell if shell is not None else _shell()
    if shell is None or getattr(shell, "kernel", None) is None:
        return Host("terminal", live=False, in_place=False)
    if "ipyparallel.engine.app" in sys.modules:  # no page can send it a message
        return Host("engine", live=False, in_place=False, flush=True)
    live = find_spec("anywidget") is not None
    if "google.colab" in sys.modules:
        return Host("colab", live, in_place=False, flush=True)
    if "__vsc_ipynb_file__" in shell.user_ns or "VSCODE_PID" in environ:
        return Host("vscode", live, in_place=False)
    return Host("lab", live, in_place=True)


def widget_bundle(model_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The data and the metadata of a widget's output."""
    from anywidget._util import repr_mimebundle  # adds the metadata that Colab needs

    data, metadata = repr_mimebundle(model_id=model_id, repr_text="")
    return {WIDGET: data[WIDGET]}, metadata


def _shell() -> Any:
    """The running shell. A session without a shell must not import IPython."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None
