"""The IPython extension: `%jax`, `%%pure`, `%%jit`. No engine logic here.

`load` adds the magics and their completion to a shell, `unload` takes both away and turns `%jax` off, so that a
session after `%unload_ext jaxtorch` is the session before `%load_ext jaxtorch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtorch.device.session import session

from .cell_magics import CellMagics
from .completion import complete_jax
from .jax_magic import JaxMagics

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def load(shell: InteractiveShell) -> None:
    """Add the magics to a shell. Loading again replaces them."""
    _remove(shell)
    shell.register_magics(JaxMagics, CellMagics)
    shell.Completer.custom_matchers.append(complete_jax)


def unload(shell: InteractiveShell) -> None:
    """Take everything away that `load` and the magics brought into a shell."""
    session.off()
    _remove(shell)


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
    matchers = shell.Completer.custom_matchers
    matchers[:] = [m for m in matchers if getattr(m, "__module__", "") != complete_jax.__module__]
