"""The hot path: one eager call.

A cached call must cost about as much as a jitted JAX call, so this only builds a key, looks it up and calls the
executable. It handles the most common calls: tensors (including views), at most one number as the last argument, and
one result. All other calls, and every cache miss, go to `Operation.general` (`operation.py`), which builds the same
key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch

from ..base import torch_private as private
from ..base.options import config
from ..programs import tracing
from ..programs.atomic import DONATED_ERRORS, was_replaced
from ..programs.errors import explain_call
from ..programs.site import origin
from ..storage.buffer import geometry
from .program import Program

# What stands in a key for a number. A bool is a static argument: no program is found under "".
_LETTERS = {int: "i", float: "f", complex: "c", bool: ""}
_letter_of = _LETTERS.get
_default_dtype = torch.get_default_dtype
_precision = torch.get_float32_matmul_precision
_create = private.create_empty_tensor


def hot_path(find: Callable[[], Any]) -> Callable[..., Any]:
    """The kernel that torch calls.

    A closure, because an attribute of `self` costs 30 ns and a method one more frame, and `find` makes the Operation
    at the first call, because making two thousand of them would cost the first user 100 ms.
    """
    general: Any = None
    programs: dict[tuple[Any, ...], Program] = {}
    numeric: frozenset[int] = frozenset()
    special = True

    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal general, programs, numeric, special
        if general is None:
            operation = find()
            # Or a view, or an operator that runs by decomposition or on the CPU: those are functions.
            general = getattr(operation, "general", operation)
            programs = getattr(operation, "programs", programs)
            numeric = getattr(operation, "numeric", numeric)
            special = getattr(operation, "special", True)
        if special or kwargs or tracing.depth:
            return general(*args, **kwargs)
        key: list[Any] = [
            config._base if not config._open else config.options(),
            _default_dtype(),
            _precision(),
        ]
        operands = []
        # By its type, before an attribute is asked of it: an AttributeError costs 2 µs.
        letter = _letter_of(args[-1].__class__)
        try:
            for a in args if letter is None else args[:-1]:
                buffer = a.untyped_storage().buffer
                operands.append(buffer.array)
                key.append(geometry(a, buffer))
        except AttributeError:  # an argument that is no tensor of the device
            return general(*args)
        if letter is not None:
            if len(operands) not in numeric:
                return general(*args)
            key.append(letter)
        program = programs.get(tuple(key))
        if program is None or not program.quick:
            return general(*args)
        if not program.plain and not program.complete(operands, args):
            return general(*args)
        try:
            (out,) = program._call(*operands)  # type: ignore[misc]  # compiled, because it is quick
        except DONATED_ERRORS as error:
            tensors = (a for a in args if isinstance(a, torch.Tensor))
            held = [t.untyped_storage().buffer for t in tensors]  # type: ignore[attr-defined]  # we set `buffer`
            if was_replaced(held, operands):
                return kernel(*args)
            if not isinstance(error, jax.errors.JaxRuntimeError):
                raise
            raise explain_call(error, program.name, held) from None
        leaf = program.only
        result = _create(leaf.size, leaf.dtype)
        result.untyped_storage().buffer = leaf.spec.buffer(  # type: ignore[attr-defined]  # we set `buffer`
            out, leaf.spec, origin(leaf)
        )
        return result

    return kernel
