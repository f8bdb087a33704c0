"""Operators without a lowering: torch's decomposition is run over tracers inside one program.

If the decomposition needs a value (a branch on a tensor), the operator falls back to the CPU (`cpu.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import jax
import torch

from ..base import torch_private as private
from ..base.torch_private import OpOverload
from ..lowerings.registry import Lowering
from ..programs import stats, tracing
from ..programs.untraceable import Untraceable
from ..storage.buffer import tensor_over
from .cpu import on_cpu
from .operation import Operation, Typed
from .read import contiguous_array
from .schema import Kernel, Signature
from .targets import Type

Tensor = torch.Tensor


def decomposition_of(op: OpOverload, signature: Signature) -> Kernel | None:
    """torch's decomposition of an operator, or of its functional overload if it writes."""
    target = op if not signature.written else signature.functional
    return None if target is None else private.decomposition_table().get(target)


_running = threading.local()


class Decomposed:
    """An operator that runs torch's decomposition as one program, or on the CPU if that cannot be traced.

    Args:
        op: the overload.
        decomposition: torch's, of the functional overload.
        operation_of: gives the operation of another overload.
    """

    def __init__(
        self,
        op: OpOverload,
        decomposition: Kernel,
        operation_of: Callable[[OpOverload], Typed],
    ):
        self.op = op
        self.signature = Signature(op)
        self.on_cpu = False
        functional = self.signature.functional
        assert functional is not None
        self.functional = functional
        traced = Lowering(over_tensors(self.decompose, Signature(functional)), decomposed=True)
        self.decomposition = decomposition
        self.operation = Operation(op, traced, operation_of)

    def decompose(self, *args: object, **kwargs: object) -> object:
        """The decomposition, refused if it needs the operator itself (`fill` uses `full_like`, which uses `fill`)."""
        running = _running.__dict__.setdefault("ops", set())
        if self.functional in running:
            raise Untraceable(f"torch decomposes {self.functional} into itself")
        running.add(self.functional)
        try:
            return self.decomposition(*args, **kwargs)
        finally:
            running.discard(self.functional)

    def result_types(self, args: Sequence[object]) -> list[Type]:
        """As `Operation.result_types`."""
        return self.operation.result_types(args)

    def __call__(self, *args: object, **kwargs: object) -> object:
        if not self.on_cpu:
            try:
                result = self.operation(*args, **kwargs)
                stats.count_decomposition(self.operation.name)
                return result
            except (Untraceable, jax.errors.ConcretizationTypeError, NotImplementedError) as error:
                self.on_cpu = True
                error.__traceback__ = None  # marks the error as handled (`Trace.check_refusals`)
        return on_cpu(self.op, self.signature, args, kwargs)


class _DecompositionTrace(tracing.Trace):
    def contexts(self) -> Iterator[AbstractContextManager[object]]:
        yield torch.no_grad()
        yield torch.device("jax")


def over_tensors(function: Kernel, signature: Signature | None = None) -> Callable[..., object]:
    """A torch function as a JAX function: it runs over tensors that hold tracers.

    Args:
        function: takes tensors where the JAX function takes arrays.
        signature: of the function, if it has keyword-only arguments.
    """

    def over_arrays(*args: object) -> object:
        tensors = [_to_tensor(a) for a in args]
        with tracing.tracing(_DecompositionTrace()):
            returned = (
                function(*tensors) if signature is None else signature.call(function, tensors)
            )
            return _to_arrays(returned)

    return over_arrays


def _to_tensor(a: object) -> object:
    if isinstance(a, list):
        return [_to_tensor(item) for item in a]
    if isinstance(a, jax.Array):
        return tensor_over(a)
    return a


def _to_arrays(result: object) -> object:
    if isinstance(result, list | tuple):
        return [_to_arrays(item) for item in result]
    if isinstance(result, Tensor):
        if result.device.type != "jax":
            return jax.numpy.asarray(result.numpy())
        return contiguous_array(result)
    return result
