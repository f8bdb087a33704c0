"""The result of `pure(module)` and `jit(module)`: the module, with captured calls.

It is an object of a class derived from the module's own, and both objects share one `__dict__`. So it behaves as the
module in every respect: `isinstance`, parameters, `state_dict`, `eval`, hooks, attributes, use as a submodule. Only
calls differ.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import torch

from .cached import CacheInfo

if TYPE_CHECKING:
    from .lowering import Lowered

Module = torch.nn.Module
_in_dynamo = torch.compiler.is_dynamo_compiling


class Calls(Protocol):
    """The object that runs the calls: a `Pure` or a `Jit`."""

    _function: Callable[..., object]
    _options: tuple[object, ...]

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run a call."""

    @property
    def lower(self) -> Callable[..., Lowered]:
        """Lowers the program of a call."""

    def cache_info(self) -> CacheInfo:
        """The number of cached programs."""

    def clear_cache(self) -> None:
        """Drop every program."""


C = TypeVar("C", bound=Calls)


class CapturedModule(Module):
    """A module that runs compiled. Created by `pure(module)` and `jit(module)`.

    Attributes:
        _jaxtorch: runs the calls. Not among the attributes that are shared.
    """

    __slots__ = ("_jaxtorch",)
    _jaxtorch: Calls

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if _in_dynamo():  # the call becomes part of a larger program
            return super().__call__(*args, **kwargs)
        return self._jaxtorch(*args, **kwargs)

    @property
    def __wrapped__(self) -> Module:
        """The module itself."""
        module = self._jaxtorch._function
        assert isinstance(module, Module)
        return module

    @property
    def lower(self) -> Callable[..., Lowered]:
        """Lowers the program of a call without running it, as `pure(function).lower` and `jit(function).lower` do."""
        return self._jaxtorch.lower

    def cache_info(self) -> CacheInfo:
        """Hits, misses, and the number of cached programs."""
        return self._jaxtorch.cache_info()

    def clear_cache(self) -> None:
        """Drop every program."""
        self._jaxtorch.clear_cache()

    def __reduce_ex__(self, protocol: object) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Copies and pickles are those of the module, captured again."""
        calls = self._jaxtorch
        return captured_by, (type(calls), self.__wrapped__, *calls._options)


@overload
def captured_by(kind: Callable[..., C], function: Module, *options: object) -> CapturedModule: ...


@overload
def captured_by(
    kind: Callable[..., C], function: Callable[..., object], *options: object
) -> C | CapturedModule: ...


def captured_by(
    kind: Callable[..., C], function: Callable[..., object], *options: object
) -> C | CapturedModule:
    """A function or module whose calls run compiled.

    Args:
        kind: `Pure` or `Jit`.
        options: further arguments of `kind`.
    """
    if isinstance(function, CapturedModule):
        function = function.__wrapped__
    captured = kind(function, *options)
    if not isinstance(function, Module) or isinstance(function, torch.jit.ScriptModule):
        return captured
    cls = type(function)
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    derived = types.new_class(
        cls.__name__, (CapturedModule, cls), {}, lambda body: body.update(names)
    )
    new: CapturedModule = object.__new__(derived)
    # Not by the module's own `__setattr__`.
    object.__setattr__(new, "__dict__", function.__dict__)
    object.__setattr__(new, "_jaxtorch", captured)
    return new
