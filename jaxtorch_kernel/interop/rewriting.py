"""A JAX function that updates tensors: `new = function(*written, *read)`, written back.

In eager mode it is one compiled program per signature. The tensors that it updates are donated to it. Running it and
storing its results is one call in C (`programs/atomic.py`), so that Ctrl-C takes effect before or after the update,
never in between. Inside captured code the function is inlined, and the writes are effects of that program.

A tensor that covers only part of its buffer, or is not on the jax device, is read and then updated with `copy_`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import torch

from ..device import interrupts
from ..dispatch.read import contiguous_array
from ..operators.borrow import borrowed
from ..operators.bridge import avals_of
from ..operators.sharing import tensor_of
from ..programs import tracing
from ..programs.atomic import ensure_unshared, run_into, store
from ..programs.compiled import build
from ..programs.errors import explain
from ..programs.stats import FunctionRecord, TraceRecord
from ..storage.buffer import Buffer, buffer_of, spec_of, wrap
from ..storage.layout import plan

Tensor = torch.Tensor
Function = Callable[..., Sequence[Any]]


class Rewriting:
    """A family of JAX functions over tensors, compiled at their first use.

    Args:
        name: of the programs.
    """

    def __init__(self, name: str):
        self.name = name
        self._programs: dict[Any, Callable[..., Any]] = {}
        self._cause = TraceRecord(FunctionRecord(name, "call_jax"))

    def __call__(
        self,
        function: Function,
        written: Sequence[Tensor],
        read: Sequence[Any],
        key: Hashable = None,
    ) -> None:
        """Assign the results of `function(*written, *read)` to `written`.

        Args:
            function: takes an array for each tensor, returns one of the same shape and dtype for each of `written`.
            written: tensors on any device; inside captured code on the jax device.
            read: tensors, or arrays.
            key: distinguishes functions that compile to different programs.

        Raises:
            RuntimeError: a tensor in captured code is not on the jax device, or XLA fails.
        """
        with torch.no_grad():
            if tracing.active():
                self._inline(function, written, read)
            else:
                self._run(function, written, read, key)

    def _inline(self, function: Function, written: Sequence[Tensor], read: Sequence[Any]) -> None:
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
        self, function: Function, written: Sequence[Tensor], read: Sequence[Any], key: Hashable
    ) -> None:
        cells = _whole_cells(written)
        for cell in cells:
            if cell is not None:
                ensure_unshared(cell)
        operands = [_operand(t) for t in written] + [_operand(t) for t in read]
        donated = [i for i, cell in enumerate(cells) if cell is not None]
        taken = {id(operands[i]) for i in donated}
        for i in {*range(len(operands))} - {*donated}:
            if id(operands[i]) in taken:  # a gradient that is the parameter itself, say
                operands[i] = operands[i].copy()
        known = (key, tuple((a.shape, a.dtype, a.sharding) for a in operands), tuple(donated))
        execute = self._programs.get(known)
        if execute is None:
            places = [a.sharding for a in operands[: len(written)]]
            built = build(function, avals_of(operands), donated, self.name, places, self._cause)
            execute = self._programs[known] = built.call
        del taken
        landing = [Buffer(None, None) if cell is None else cell for cell in cells]  # type: ignore[arg-type]
        copies = [(t, b) for t, b, c in zip(written, landing, cells, strict=True) if c is None]

        def land() -> None:
            try:
                run_into(execute, operands, landing)
            except jax.errors.JaxRuntimeError as error:
                raise explain(error, self.name) from None
            for tensor, buffer in copies:
                tensor.copy_(tensor_of(buffer.array, tensor.device))

        if copies:
            interrupts.uninterrupted(land)
        else:
            land()
        torch.autograd.graph.increment_version([written[i] for i in donated])


def assign(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Assign the values of other tensors, of any device and dtype; on the jax device to all tensors or none."""
    with torch.no_grad():
        fitting = [v.to(t.device, t.dtype) for t, v in zip(tensors, values, strict=True)]
        buffers, arrays = [], []
        for tensor, value in zip(tensors, fitting, strict=True):
            if tensor.device.type == "jax":
                buffers.append(buffer_of(tensor))
                with jax.enable_x64(True):
                    array = jax.device_put(contiguous_array(value), buffers[-1].spec.placement)
                arrays.append(array)
        store(buffers, arrays)
        for tensor, value in zip(tensors, fitting, strict=True):
            if tensor.device.type != "jax":
                tensor.copy_(value)


def _operand(value: Any) -> Any:
    """The array under a tensor, or over one that is elsewhere; an array as it is."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach()
    return contiguous_array(value if value.device.type == "jax" else borrowed(value))


def _whole_cells(tensors: Sequence[Tensor]) -> list[Buffer | None]:
    """The buffer of each tensor that is all of one, and that no tensor before it shares."""
    cells: list[Buffer | None] = []
    seen: set[int] = set()
    for t in tensors:
        cell = buffer_of(t) if t.device.type == "jax" else None
        if cell is not None and (id(cell) in seen or not _is_whole(t, cell)):
            cell = None
        if cell is not None:
            seen.add(id(cell))
        cells.append(cell)
    return cells


def _is_whole(tensor: Tensor, cell: Buffer) -> bool:
    return (
        plan(cell.spec, tensor.dtype, tuple(tensor.shape), tensor.stride()) is None
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _write_traced(tensor: Tensor, result: Any) -> None:
    """Write inside a trace."""
    trace = tracing.current()
    assert trace is not None
    cell = buffer_of(tensor)
    if _is_whole(tensor, cell):
        trace.touch(cell)
        trace.note_writer(cell)
        cell.write(result, cell.spec)
        torch.autograd.graph.increment_version([tensor])
        return
    spec = spec_of(cell.spec.dtype, tuple(tensor.shape), cell.spec.placement)
    new = wrap(result, spec, tensor.shape, tensor.dtype)
    trace.add_created(buffer_of(new))
    tensor.copy_(new)
