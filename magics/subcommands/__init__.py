"""The subcommands of `%jax`, one file for each family; `table.py` says how one is made.

The order of the imports is the order in which help and completion show them.
"""

# isort: off
from ..subcommands import session  # noqa: F401  # registers its subcommands
from ..subcommands import config  # noqa: F401
from ..subcommands import cache  # noqa: F401
from ..subcommands import memory  # noqa: F401
from ..subcommands import devices  # noqa: F401
from ..subcommands import hlo  # noqa: F401
from ..subcommands import profile  # noqa: F401

# isort: on
from ..subcommands.table import SUBCOMMANDS, Call, Subcommand, help_text, nearest, parse, subcommand

__all__ = ["SUBCOMMANDS", "Call", "Subcommand", "help_text", "nearest", "parse", "subcommand"]
