"""Displays for the outputs of a cluster's cell, while it runs and at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from jaxtorch.widgets.cluster import OutputsView
from jaxtorch.widgets.hosts import host

from .. import progress

if TYPE_CHECKING:
    from IPython.core.display_functions import DisplayHandle
    from IPython.core.interactiveshell import InteractiveShell


class Display(Protocol):
    """Where the outputs are shown."""

    def say(self, line: str) -> None:
        """Replace the display by a line of progress."""

    def show(self, view: OutputsView) -> None:
        """Show the outputs so far."""

    def end(self, view: OutputsView) -> None:
        """Show the final outputs."""


class Terminal:
    """A terminal: a line while the cell runs, if the terminal can replace it, and the outputs at the end."""

    def __init__(self, shell: InteractiveShell):
        self._sink = progress.sink(shell)

    def say(self, line: str) -> None:
        if self._sink is not None:
            self._sink.show(line)

    def show(self, view: OutputsView) -> None:
        self.say(view.summary)

    def end(self, view: OutputsView) -> None:
        if self._sink is not None:
            self._sink.clear("")
        print(view.text())


class Notebook:
    """An output of the cell, which is updated while the processes run."""

    def __init__(self) -> None:
        self._handle: DisplayHandle | None = None

    def say(self, line: str) -> None:
        self._put({"text/plain": line})

    def show(self, view: OutputsView) -> None:
        self._put({"text/plain": view.text(), "text/html": view.html()})

    def end(self, view: OutputsView) -> None:
        self.show(view)

    def _put(self, data: dict[str, str]) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def display_of(shell: InteractiveShell) -> Display:
    """The display of a shell's front end."""
    return Terminal(shell) if host(shell).name == "terminal" else Notebook()
