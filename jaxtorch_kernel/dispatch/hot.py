"""The hot path: one eager call.

A cached call must cost about what JAX's own jitted call costs, so this does no more than build a key, look it up
and call the executable. Everything else is behind a cache miss (`operation.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch

from ..options import config
from ..storage.buffer import Buffer
from . import tracing
from .call import Call, describe, kind_by_value, letter_of
from .errors import explain
from .program import Program
from .results import results_of
from .schema import NUMBER
from .site import origin, printing

Tensor = torch.Tensor
_default_dtype = torch.get_default_dtype
_create = torch._C._acc.create_empty_tensor


def hot_path(find: Callable[[], Any]) -> Callable[..., Any]:
    """The kernel that torch calls: describe, look up, run, wrap.

    A closure, because an attribute of `self` costs 30 ns and a method one more frame, and `find` makes the Operation
    at the first call, because making two thousand of them would cost the first user 100 ms.
    """
    operation: Any = None
    kinds: tuple[int, ...] = ()
    programs: dict[tuple[Any, ...], Program] | None = None

    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal operation, kinds, programs
        if operation is None:
            operation = find()
            kinds = getattr(operation, "kinds", ())
            programs = getattr(operation, "programs", None)
        if kwargs or not kinds:
            if programs is None:  # a view, or an operator that runs by decomposition or on the CPU
                return operation(*args, **kwargs)
            args = operation.complete(args, kwargs)
        key: list[Any] = [config._base if not config._open else config.options(), _default_dtype()]
        tensors: list[Tensor] = []
        buffers: list[Buffer] = []
        numbers: list[tuple[str, Any]] = []
        try:
            # Most calls are tensors alone, which this loop takes fastest; the rest go on below.
            for a in args:
                buffer = a.untyped_storage().buffer
                tensors.append(a)
                buffers.append(buffer)
                key += (buffer.spec, a.dtype, a.shape, a.is_contiguous() or a.stride())
        except AttributeError:
            done = len(tensors)
            for kind, a in zip(kinds[done:] or map(kind_by_value, args[done:]), args[done:]):  # noqa: B905
                letter = letter_of(type(a))
                if letter is not None and kind <= NUMBER:
                    key.append(letter)
                    numbers.append((letter, a))
                else:
                    describe(operation, kind, a, key, tensors, buffers, numbers)
        if operation.special:
            return operation.run_special(Call(args, key, tensors, buffers, numbers))
        program = programs.get(tuple(key))  # type: ignore[union-attr]
        if program is None:
            if printing():
                return operation.on_cpu(args)
            program = operation.build(Call(args, key, tensors, buffers, numbers))
        operands = [b.array for b in buffers]
        if program.checked or numbers or tracing.depth:
            call = Call(args, key, tensors, buffers, numbers)
            outputs = operation.run(program, call, operands, [])
        else:
            try:
                outputs = (program._call or program.compiled())(*operands)
            except jax.errors.JaxRuntimeError as error:
                raise explain(error, program.name) from None
        if not program.single:
            return results_of(program, outputs, tensors)
        leaf = program.only
        result = _create(leaf.size, leaf.dtype)
        result.untyped_storage().buffer = leaf.spec.buffer(outputs[0], leaf.spec, origin(program))  # type: ignore[attr-defined]
        return result

    return kernel
