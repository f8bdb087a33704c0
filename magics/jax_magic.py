"""`%jax name` and `%%jax name`: look up a subcommand, parse its arguments, run it."""

from __future__ import annotations

from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class

from .subcommands import SUBCOMMANDS, Invocation, Subcommand, help_text, nearest, parse
from .subcommands.table import HELP, SHOWS_HELP


@magics_class
class JaxMagics(Magics):
    """The magics that `%load_ext jaxtorch` adds."""

    @line_cell_magic
    def jax(self, line: str, cell: str | None = None) -> Any:
        """Run PyTorch through XLA on the `jax` device, and inspect what it does."""
        name, _, arguments = line.strip().partition(" ")
        subcommand = _subcommand(name, cell)
        shell = self.shell
        assert shell is not None
        return subcommand.run(Invocation(shell, parse(subcommand, arguments.strip()), cell, line))

    jax.__doc__ = f"""{jax.__doc__}

{help_text()}

An explicit device, as in torch.zeros(3, device="cpu"), always takes precedence.
"""


def _subcommand(name: str, cell: str | None) -> Subcommand:
    """The subcommand with this name. An unknown name raises an error that suggests the nearest one."""
    sign = "%jax" if cell is None else "%%jax"
    fitting = [w.name for w in SUBCOMMANDS.values() if (w.line if cell is None else w.cell)]
    subcommand = SUBCOMMANDS.get(name or "status")
    if name in HELP:
        raise UsageError(SHOWS_HELP)
    if subcommand is None:
        raise UsageError(
            f"{sign} has no subcommand {name!r}. The nearest is `{sign} {nearest(name, fitting)}`."
        )
    if cell is not None and not subcommand.cell:
        raise UsageError(
            f"`%jax {subcommand.name}` is a line magic: write it on its own line, without a cell."
        )
    if cell is None and not subcommand.line:
        raise UsageError(
            f"`%%jax {subcommand.name}` is a cell magic: write it as the first line of a cell."
        )
    return subcommand
