"""The hot path: one eager call.

A cached call must cost about what JAX's own jitted call costs, so this does no more than build a key, look it up
and call the executable. Every other call, and every cache miss, is `Operation.general` (`operation.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch

from .. import _torch_private as private
from ..options import config
from ..storage.buffer import geometry
from . import tracing
from .errors import explain
from .program import Program
from .site import origin

_NUMBERS = frozenset({int, float, complex, bool})
_default_dtype = torch.get_default_dtype
_create = private.create_empty_tensor


def hot_path(find: Callable[[], Any]) -> Callable[..., Any]:
    """The kernel that torch calls. It takes the commonest call itself: tensors alone, each read whole, one result.

    Every other call goes to `Operation.general`. A closure, because an attribute of `self` costs 30 ns and a method one
    more frame, and `find` makes the Operation at the first call, because making two thousand of them would cost the
    first user 100 ms.
    """
    general: Any = None
    programs: dict[tuple[Any, ...], Program] = {}
    plain = False

    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal general, programs, plain
        if general is None:
            operation = find()
            # Or a view, or an operator that runs by decomposition or on the CPU: those are functions.
            general = getattr(operation, "general", operation)
            programs = getattr(operation, "programs", programs)
            plain = not getattr(operation, "special", True)
        if not plain or kwargs or args[-1].__class__ in _NUMBERS or tracing.depth:
            return general(*args, **kwargs)
        key: list[Any] = [config._base if not config._open else config.options(), _default_dtype()]
        operands = []
        try:
            for a in args:
                buffer = a.untyped_storage().buffer
                operands.append(buffer.array)
                key.append(geometry(a, buffer))
        except AttributeError:  # an argument that is no tensor of the device
            return general(*args)
        program = programs.get(tuple(key))
        if program is None or not program.plain:
            return general(*args)
        try:
            (out,) = program._call(*operands)  # type: ignore[misc]
        except jax.errors.JaxRuntimeError as error:
            raise explain(error, program.name) from None
        leaf = program.only
        result = _create(leaf.size, leaf.dtype)
        result.untyped_storage().buffer = leaf.spec.buffer(  # type: ignore[attr-defined]
            out, leaf.spec, origin(program)
        )
        return result

    return kernel
