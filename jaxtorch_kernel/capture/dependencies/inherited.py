"""The attributes of an object that its inherited methods read, where no followed bytecode shows it.

A class of the user may inherit methods from the standard library (`class Config(UserDict)`) or from torch. Their code
is not followed, so the names in it are looked up here, for each class that defines such methods.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import NamedTuple

import torch

from . import outside
from .followed import Owner, owner_of_file
from .reads import reads_of
from .tokens import is_user_class

# Their methods do not read attributes of the user's, though they mention `__dict__`.
_WITHOUT_STATE = frozenset({"typing", "abc", *outside.OPAQUE_MODULES})


class Inherited(NamedTuple):
    """What the methods that a class inherits read.

    Attributes:
        names: of attributes.
        dynamic: whether they read attributes whose names they compute.
    """

    names: frozenset[str]
    dynamic: bool


def inherited_reads(cls: type) -> Inherited:
    """What the methods of a class and its bases read, as far as their code is not followed.

    Example:
        >>> from collections import UserDict
        >>> class Config(UserDict):
        ...     __module__ = "__main__"
        >>> "data" in inherited_reads(Config).names
        True
    """
    # The recorder knows the methods of modules. Other objects of libraries (IPython's shell) hold no settings.
    is_followed = is_user_class(cls) or issubclass(cls, torch.utils.data.Dataset)
    if not is_followed or issubclass(cls, torch.nn.Module):
        return Inherited(frozenset(), False)
    reads = [_reads_of_methods(base) for base in cls.__mro__ if _is_not_followed(base)]
    names = frozenset[str]().union(*(read.names for read in reads))
    return Inherited(names, any(read.dynamic for read in reads))


def _is_not_followed(cls: type) -> bool:
    return cls.__module__ not in _WITHOUT_STATE and any(map(_is_unseen, _methods(cls)))


def _is_unseen(code: types.CodeType) -> bool:
    return owner_of_file(code.co_filename) is Owner.OTHER


@functools.cache  # these classes live as long as the process
def _reads_of_methods(cls: type) -> Inherited:
    reads = [reads_of(code) for code in filter(_is_unseen, _methods(cls))]
    names = frozenset[str]().union(*(read.names for read in reads))
    return Inherited(names, any(read.dynamic for read in reads))


def _methods(cls: type) -> Iterator[types.CodeType]:
    """The code of the methods and properties that a class defines, which get an object of it."""
    for value in vars(cls).values():
        function = value.fget if isinstance(value, property) else value
        if isinstance(function, types.FunctionType):
            yield function.__code__
