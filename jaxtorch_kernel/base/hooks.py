"""Tables of private hooks. `torch_hooks.py` has the table of torch's hooks, `jax_private.py` that of JAX's.

A hook is a private function or attribute of another library, which any release may rename or remove. If a required hook
is missing, the import raises one clear error. If an optional hook is missing, its feature is lost, with one warning.
`tests/test_private_uses.py` finds every private name that the code uses without an entry in a table.
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

OF_INSTANCES = (
    ":"  # precedes an attribute that only instances have, so a lookup in the class would fail
)


@dataclass(frozen=True)
class Hook:
    """The purpose of one hook, and what is lost without it; None if the device requires the hook."""

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
        """The hook at a path of the table. If an optional one is missing, warn once and return `instead`.

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
    """Whether a hook is looked up only when used: its module is not imported yet, or torch creates it on access."""
    if path.startswith("torch.ops."):
        return True
    module = path.rpartition(".")[0]
    try:
        return module not in sys.modules and importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # not the name of a module
        return False


def resolve(path: str) -> Any:
    """The object at a dotted path. Imports the modules on the path."""
    first, *names = path.split(".")
    target: Any = importlib.import_module(first)
    name = first
    for part in names:
        name = f"{name}.{part}"
        try:
            target = getattr(target, part)
        except AttributeError:
            if not isinstance(target, ModuleType):
                raise
            target = importlib.import_module(name)
    return target
