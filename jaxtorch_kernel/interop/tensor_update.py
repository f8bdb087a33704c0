"""Updates of tensors by a JAX function: the results of `function(*written, *read)` replace the values of `written`.

In eager mode the function is one compiled program per signature, and the updated tensors are donated to it. Running it
and storing its results is one call in C (`programs/atomic.py`), so that Ctrl-C takes effect before or after the update,
never in between. Inside captured code the function is inlined, and the writes are effects of that program.

A tensor that covers only part of its buffer, or is not on the jax device, is read and then updated with `copy_`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import jax
import torch

from ..base.jax_private import FAILURES
from ..device import interrupts
from ..dispatch.read import contiguous_array
from ..operators.borrow import borrowed
from ..operators.bridge import avals_of
from ..operators.sharing import tensor_of
from ..programs import tracing
from ..programs.atomic import ensure_unshared, kept_if_checked, run_into, store
from ..programs.compiled import build
from ..programs.compiling import Executable
from ..programs.errors import explain
from ..programs.stats import FunctionRecord, TraceRecord
from ..storage import placement
from ..storage.buffer import Buffer, buffer_of, spec_of, wrap
from ..storage.layout import plan

Tensor = torch.Tensor
Array = jax.Array
Function = Callable[..., Sequence[Array]]


class TensorUpdate:
    """Updates of tensors by related JAX functions, each compiled at its first use.

    Args:
        name: the name of the programs.
    """

    def __init__(self, name: str):
        self.name = name
        self._programs: dict[Hashable, Executable] = {}
        self._cause = TraceRecord(FunctionRecord(name, "call_jax"))

    def __call__(
        self,
        function: Function,
        written: Sequence[Tensor],
        read: Sequence[Tensor | Array],
        key: Hashable = None,
    ) -> None:
        """Assign the results of `function(*written, *read)` to `written`.

        Args:
            function: takes an array for each tensor, and returns one of the same shape and dtype for each of `written`.
            written: tensors on any device; inside captured code on the jax device.
            read: tensors or arrays.
            key: distinguishes functions that compile to different programs.

        Raises:
            RuntimeError: a tensor in captured code is not on the jax device, or XLA fails.
        """
        with torch.no_grad():
            if tracing.active():
                self._inline(function, written, read)
            else:
                self._run(function, written, read, key)

    def _inline(
        self, function: Function, written: Sequence[Tensor], read: Sequence[Tensor | Array]
    ) -> None:
        for t in (*written, *read):
            if isinstance(t, Tensor) and t.device.type != "jax":
                raise RuntimeError(
                    f"{self.name} in captured code: a tensor is on {t.device}, but a program can only write to tensors "
                    "on the jax device. Move it there (model.to('jax')), or take this line out of the captured code."
                )
        with jax.enable_x64(True):
            results = function(*map(_operand, (*written, *read)))
        for tensor, result in zip(written, results, strict=True):
            _write_traced(tensor, result)

    def _run(
        self,
        function: Function,
        written: Sequence[Tensor],
        read: Sequence[Tensor | Array],
        key: Hashable,
    ) -> None:
        buffers = _whole_buffers(written)
        for buffer in buffers:
            if buffer is not None:
                ensure_unshared(buffer)
        operands = [_operand(t) for t in written] + [_operand(t) for t in read]
        donated = [i for i, buffer in enumerate(buffers) if buffer is not None]
        donated_arrays = {id(operands[i]) for i in donated}
        for i in {*range(len(operands))} - {*donated}:
            if id(operands[i]) in donated_arrays:  # such as a gradient that is its parameter
                operands[i] = placement.copied(operands[i])
        signature = (key, tuple((a.shape, a.dtype, a.sharding) for a in operands), tuple(donated))
        execute = self._programs.get(signature)
        if execute is None:
            shardings = [a.sharding for a in operands[: len(written)]]
            built = build(function, avals_of(operands), donated, self.name, shardings, self._cause)
            execute = self._programs[signature] = built.call
        targets = [_temporary() if buffer is None else buffer for buffer in buffers]
        copied = [
            (t, target)
            for t, target, buffer in zip(written, targets, buffers, strict=True)
            if buffer is None
        ]

        def update() -> None:
            try:
                run_into(execute, kept_if_checked(operands, donated), targets)
            except FAILURES as error:
                raise explain(error, self.name) from None
            for tensor, buffer in copied:
                tensor.copy_(tensor_of(buffer.array, tensor.device))

        if copied:
            interrupts.uninterrupted(update)
        else:
            update()
        torch.autograd.graph.increment_version([written[i] for i in donated])


def assign(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Assign the values of other tensors, of any device and dtype; on the jax device to all tensors or none."""
    with torch.no_grad():
        converted = [v.to(t.device, t.dtype) for t, v in zip(tensors, values, strict=True)]
        buffers, arrays = [], []
        for tensor, value in zip(tensors, converted, strict=True):
            if tensor.device.type == "jax":
                buffers.append(buffer_of(tensor))
                with jax.enable_x64(True):
                    array = placement.moved(contiguous_array(value), buffers[-1].spec.placement)
                arrays.append(array)
        store(buffers, arrays)
        for tensor, value in zip(tensors, converted, strict=True):
            if tensor.device.type != "jax":
                tensor.copy_(value)


def _operand(value: Tensor | Array) -> Array:
    """The array of a tensor on any device; an array is returned unchanged."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach()
    array: Array = contiguous_array(value if value.device.type == "jax" else borrowed(value))
    return array


def _temporary() -> Buffer:
    """A buffer for one result, which is then copied to its tensor. It needs no spec."""
    return Buffer(None, None)  # type: ignore[arg-type]


def _whole_buffers(tensors: Sequence[Tensor]) -> list[Buffer | None]:
    """The buffer of each tensor that covers all of it, unless an earlier tensor has the same one."""
    buffers: list[Buffer | None] = []
    seen: set[int] = set()
    for t in tensors:
        buffer = buffer_of(t) if t.device.type == "jax" else None
        if buffer is not None and (id(buffer) in seen or not _is_whole(t, buffer)):
            buffer = None
        if buffer is not None:
            seen.add(id(buffer))
        buffers.append(buffer)
    return buffers


def _is_whole(tensor: Tensor, buffer: Buffer) -> bool:
    return (
        plan(buffer.spec, tensor.dtype, tuple(tensor.shape), tensor.stride()) is None
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _write_traced(tensor: Tensor, result: Array) -> None:
    """Write to a tensor inside a trace."""
    trace = tracing.current()
    assert trace is not None
    buffer = buffer_of(tensor)
    if _is_whole(tensor, buffer):
        trace.touch(buffer)
        trace.note_writer(buffer)
        buffer.write(result, buffer.spec)
        torch.autograd.graph.increment_version([tensor])
        return
    spec = spec_of(buffer.spec.dtype, tuple(tensor.shape), buffer.spec.placement)
    new = wrap(result, spec, tensor.shape, tensor.dtype)
    trace.add_created(buffer_of(new))
    tensor.copy_(new)
