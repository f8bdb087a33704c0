"""The IPython extension: `%jax`, `%%pure`, `%%jit`. It contains no logic of the engine.

`load` adds the magics and their completion to a shell. `unload` removes both and turns `%jax` off, so that after
`%unload_ext jaxtorch` the session is as it was before `%load_ext jaxtorch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxtorch.capture.target import target
from jaxtorch.deferred.switch import switch
from jaxtorch.device import interrupts
from jaxtorch.device.session import session
from jaxtorch.insight import events, memory
from jaxtorch.native.loading import take_over
from jaxtorch.programs.site import cell_of_file, typed_lines
from jaxtorch.widgets import live

from . import completion, displays, elsewhere, progress, tracebacks
from .cell_magics import CellMagics
from .cells import Typed
from .cluster import processes
from .jax_magic import JaxMagics

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def load(shell: InteractiveShell) -> None:
    """Add the magics to a shell. Loading again replaces them."""
    _remove(shell)
    shell.register_magics(JaxMagics, CellMagics)
    shell.Completer.custom_matchers.append(completion.completer_of(shell))
    shell.events.register("pre_run_cell", _before_cell)
    shell.events.register("post_run_cell", _after_cell)
    cell_of_file[:] = [_Numbers(shell.compile)]
    typed_lines[:] = [Typed(shell)]
    events.start()
    progress.start(shell)
    elsewhere.start(shell)
    displays.start(shell)
    tracebacks.start(shell)


def unload(shell: InteractiveShell) -> None:
    """Remove everything that `load` and the magics added to a shell."""
    session.off()
    target(None)
    processes.stop()
    live.end()
    _remove(shell)
    cell_of_file.clear()
    typed_lines.clear()
    events.stop()
    progress.stop()
    elsewhere.stop()
    displays.stop(shell)
    tracebacks.stop(shell)


def _remove(shell: InteractiveShell) -> None:
    manager = shell.magics_manager
    for family in (JaxMagics, CellMagics):
        ours = manager.registry.pop(family.__name__, None)
        if ours is None:
            continue
        for kind, names in ours.magics.items():
            for name in names:
                manager.magics[kind].pop(name, None)
        shell.configurables.remove(ours)
    for event, hook in (("pre_run_cell", _before_cell), ("post_run_cell", _after_cell)):
        if hook in shell.events.callbacks[event]:
            shell.events.unregister(event, hook)
    matchers = shell.Completer.custom_matchers
    matchers[:] = [m for m in matchers if getattr(m, "__module__", "") != completion.__name__]


class _Numbers:
    """Maps the file name of a cell to its execution count. Reads IPython's own table."""

    def __init__(self, compiler: Any):
        self._table = getattr(compiler, "_filename_map", {})

    def __call__(self, file: str) -> int | None:
        return self._table.get(file)


_memory: list[Any] = []  # (info, memory at the start) of each running cell
# The cell for which jaxtorch's SIGINT handler is installed. Cells may nest.
_interruptible: Any = None


def _before_cell(info: Any) -> None:
    """Start counting memory, and install the SIGINT handler. A kernel restores Python's handler before each cell."""
    global _interruptible
    elsewhere.begin()
    take_over()
    _memory.append((info, memory.begin()))
    if interrupts.install():
        _interruptible = info


def _after_cell(result: Any) -> None:
    global _interruptible
    switch.boundary()
    _count_memory(result)
    progress.settle()
    live.flush()
    elsewhere.settle()
    # The result is None if Ctrl-C stopped the cell before it began.
    if result is None or result.info is _interruptible:
        _interruptible = None
        interrupts.restore()


def _count_memory(result: Any) -> None:
    """Record the cell's peak memory. Drop the entries of cells that Ctrl-C stopped before they began."""
    info = None if result is None else result.info
    while _memory:
        cell, started = _memory.pop()
        if cell is info or info is None:
            memory.end(started, None if result is None else result.execution_count)
            return
