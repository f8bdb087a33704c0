"""What a table of private hooks is. `torch_private.py` has the table of torch's hooks, `jax_private.py` that of JAX's.

A hook is a private function or attribute of another library, which any release may rename or drop. A required one that
is missing is one clear error at import. An optional one costs only the feature that it serves, with one warning.
`tests/test_private_uses.py` finds every use of a private name in the code that no table has.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .version import supported

OF_INSTANCES = ":"  # before an attribute that only instances have: nothing to look up in the class


@dataclass(frozen=True)
class Hook:
    """What one hook is for, and what is lost without it; None if the device cannot do without it."""

    purpose: str
    without: str | None = None


class Hooks:
    """A table: path -> `Hook`. A path of the form "torch.a | torch.b" names the alternatives of different versions."""

    def __init__(self, library: str, table: dict[str, Hook]):
        self._library = library
        self.table = table
        self._warned: set[str] = set()

    def check(self) -> None:
        """Raise one `ImportError` if the library lacks a hook that the device needs."""
        for path, hook in self.table.items():
            if hook.without is None and OF_INSTANCES not in path and not _is_for_later(path):
                self.find(path)

    def find(self, path: str, instead: Any = None) -> Any:
        """The hook at a path of the table; `instead`, after one warning, where an optional one is missing.

        Raises:
            ImportError: the library lacks a required hook.
        """
        hook = self.table[path]
        for alternative in path.split(" | "):
            try:
                return resolve(alternative)
            except (AttributeError, ImportError):
                continue
        version = importlib.import_module(self._library).__version__
        lacks = (
            f"private hook `{path}` ({hook.purpose}), which {self._library} {version} does not have"
        )
        if hook.without is None:
            raise ImportError(
                f"jaxtorch needs {self._library}'s {lacks}. Install a supported version: "
                f"pip install '{supported(self._library)}'."
            )
        if path not in self._warned:
            self._warned.add(path)
            warnings.warn(f"jaxtorch uses {self._library}'s {lacks}: {hook.without}", stacklevel=2)
        return instead


def _is_for_later(path: str) -> bool:
    """Whether a hook's module is there but not imported, or it is an operator's, which torch makes when asked."""
    if path.startswith("torch.ops."):
        return True
    module = path.rpartition(".")[0]
    try:
        return module not in sys.modules and importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # not the name of a module
        return False


def resolve(path: str) -> Any:
    """The object at a dotted path; modules on the way are imported."""
    first, *rest = path.split(".")
    found: Any = importlib.import_module(first)
    name = first
    for part in rest:
        name = f"{name}.{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            if not isinstance(found, ModuleType):
                raise
            found = importlib.import_module(name)
    return found
