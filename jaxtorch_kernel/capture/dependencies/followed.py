"""Decides which Python code is followed, that is, whose bytecode is searched for dependencies of a program.

    the user's        its globals, closures and attributes may all change
    a library's       code built on torch, and the parts of torch that hold user objects (modules, schedulers): its
                      functions do not change, but the objects that it reads may
    not followed      the rest of torch, JAX, NumPy, the standard library, this project: assumed constant

The file of a function decides. Functions generated from text (methods of a dataclass) have no file; for them the module
decides.
"""

from __future__ import annotations

import gc
import os
import sys
import types

import torch
from torch.nn.modules import module as torch_modules

from ...programs.site import is_user_file, package_of

USERS, LIBRARY, NOT_FOLLOWED = "the user's", "a library's", "not followed"

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
_NOT_FOLLOWED_NAMES = frozenset(
    (
        "torch",
        "jax",
        "jaxlib",
        "numpy",
        "torchgen",
        "IPython",
        "ipykernel",
        "_pytest",
        "pytest",
        "jaxtorch",
        "typing",
        "dataclasses",
    )
)

# What `Module.__init__` sets.
OF_EVERY_MODULE = frozenset(vars(torch.nn.Module())) - {"training"}


def whose(frame: types.FrameType) -> str:
    """USERS, LIBRARY or NOT_FOLLOWED, for a function that begins."""
    code = frame.f_code
    if any(getattr(callback, "__code__", None) is code for callback in gc.callbacks):
        return NOT_FOLLOWED  # it runs at any moment
    file = code.co_filename
    if file.startswith("<frozen"):
        return NOT_FOLLOWED
    if file.startswith("<"):  # made from text: a dataclass's method, a cell of a plain shell
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] in _NOT_FOLLOWED_NAMES:
            return NOT_FOLLOWED
        module = sys.modules.get(name)
        # `__main__` may be a launcher's module: the code that it runs in that name is the user's.
        is_users = module is None or name == "__main__" or is_users_module(module)
        return USERS if is_users else LIBRARY
    if is_user_file(file):
        return USERS
    if file == torch_modules.__file__:
        return NOT_FOLLOWED
    package = package_of(file)
    if file.startswith(_FOLLOWED_TORCH) or (package and package not in _NOT_FOLLOWED_NAMES):
        return LIBRARY
    return NOT_FOLLOWED


def is_users_module(module: types.ModuleType) -> bool:
    """Whether a Python module is the user's own."""
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ not in sys.builtin_module_names and not hasattr(module, "__path__")
    return is_user_file(file)
