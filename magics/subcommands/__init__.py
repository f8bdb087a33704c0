"""The subcommands of `%jax`, one file per family; `table.py` explains how to add one.

Help and completion show them in the order of the imports below.
"""

# isort: off
from ..subcommands import session  # noqa: F401  # registers its subcommands
from ..subcommands import config  # noqa: F401
from ..subcommands import cache  # noqa: F401
from ..subcommands import memory  # noqa: F401
from ..subcommands import devices  # noqa: F401
from ..subcommands import show  # noqa: F401
from ..subcommands import hlo  # noqa: F401
from ..subcommands import targets  # noqa: F401
from ..subcommands import target  # noqa: F401
from ..subcommands import profile  # noqa: F401
from ..subcommands import time  # noqa: F401
from ..subcommands import cluster  # noqa: F401

# isort: on
from ..subcommands.table import (
    SUBCOMMANDS,
    Invocation,
    Subcommand,
    Values,
    help_text,
    nearest,
    parse,
    statement_of,
    subcommand,
)

__all__ = [
    "SUBCOMMANDS",
    "Invocation",
    "Subcommand",
    "Values",
    "help_text",
    "nearest",
    "parse",
    "statement_of",
    "subcommand",
]
