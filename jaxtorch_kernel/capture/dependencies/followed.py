"""Decides which Python code is followed, that is, whose bytecode is searched for dependencies of a program.

    user code         its globals, closures and attributes may all change
    library code      code built on torch, and the parts of torch that hold user objects (modules, schedulers): its
                      functions do not change, but the objects that it reads may
    other code        the rest of torch, JAX, NumPy, the standard library, this project: assumed constant, not followed

The file of a function decides. Functions generated from text (methods of a dataclass) have no file; for them the module
decides.
"""

from __future__ import annotations

import enum
import functools
import gc
import os
import sys
import types
from collections.abc import Callable

import torch
from torch.nn.modules import module as torch_modules

from ...base import torch_private as private
from ...programs.site import is_user_file, package_of


class Owner(enum.Enum):
    """Whose code a function is."""

    USER = "user"
    LIBRARY = "library"
    COLLECTOR = "callback of the garbage collector"
    OTHER = "other"


_TORCH = os.path.dirname(torch.__file__)
_FOLLOWED_TORCH = tuple(
    os.path.join(_TORCH, *part)
    for part in (
        ("nn", "modules"),
        ("nn", "utils"),
        ("optim", "lr_scheduler"),
        ("optim", "swa_utils"),
    )
)
_NOT_FOLLOWED = frozenset(
    (
        "torch",
        "jax",
        "jaxlib",
        "numpy",
        "torchgen",
        "sympy",  # torch's sizes of unknown value run on it; it fills caches when it is first used
        "mpmath",
        "IPython",
        "ipykernel",
        "_pytest",
        "pytest",
        "jaxtorch",
        "typing",
        "dataclasses",
    )
)

# The attributes that `Module.__init__` sets.
MODULE_ATTRIBUTES = frozenset(vars(torch.nn.Module())) - {"training"}


def is_list_of_parameters(owner: object, name: object) -> bool:
    """Whether an attribute is a list of a recurrent layer's parameters.

    The layer makes it again if the parameters were replaced, and reads them to see that, so that they are guarded.
    """
    return name in private.LISTS_OF_PARAMETERS and isinstance(owner, torch.nn.RNNBase)


def owner_of(frame: types.FrameType) -> Owner:
    """Whose code a function is that is being entered."""
    code = frame.f_code
    if code in codes_of_callbacks():
        return Owner.COLLECTOR
    file = code.co_filename
    if file.startswith("<frozen"):
        return Owner.OTHER
    if file.startswith("<"):  # made from text: a dataclass's method, a cell of a plain shell
        if code.co_name == "<module>" and "__name__" not in frame.f_globals and frame.f_back:
            return owner_of(frame.f_back)  # an expression, such as a guard of Dynamo
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] in _NOT_FOLLOWED:
            return Owner.OTHER
        module = sys.modules.get(name)
        # `__main__` may be the module of a launcher: the code that it runs under that name is the user's.
        is_users = module is None or name == "__main__" or is_user_module(module)
        return Owner.USER if is_users else Owner.LIBRARY
    return owner_of_file(file)


def codes_of_callbacks() -> frozenset[types.CodeType]:
    """The code of the garbage collector's callbacks, which it runs at any moment."""
    codes = map(_code_of, gc.callbacks)
    return frozenset(code for code in codes if isinstance(code, types.CodeType))


def _code_of(callback: Callable[..., object]) -> object:
    """The code of a function, of a method, or of an object's `__call__`; None for C code."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    own = getattr(callback, "__code__", None)
    return own or getattr(type(callback).__call__, "__code__", None)


def owner_of_file(file: str) -> Owner:
    """Whose code a file has."""
    if is_user_file(file):
        return Owner.USER
    if file == torch_modules.__file__:
        return Owner.OTHER
    package = package_of(file)
    if file.startswith(_FOLLOWED_TORCH) or (package and package not in _NOT_FOLLOWED):
        return Owner.LIBRARY
    return Owner.OTHER


def is_user_module(module: types.ModuleType) -> bool:
    """Whether a Python module is user code."""
    file = vars(module).get("__file__")  # no `__getattr__` of the user's runs
    if file is None:
        return module.__name__ not in sys.builtin_module_names and not hasattr(module, "__path__")
    return is_user_file(file)
