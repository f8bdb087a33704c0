"""The words of `%jax`, one file for each family; `table.py` says how a word is made.

The order of the imports is the order in which help and completion show them.
"""

# isort: off
from . import session  # noqa: F401  # registers its words
from . import config  # noqa: F401
from . import cache  # noqa: F401
from . import memory  # noqa: F401
from . import devices  # noqa: F401
from . import hlo  # noqa: F401
from . import profile  # noqa: F401

# isort: on
from .table import WORDS, Call, Word, help_text, nearest, parse, word

__all__ = ["WORDS", "Call", "Word", "help_text", "nearest", "parse", "word"]
