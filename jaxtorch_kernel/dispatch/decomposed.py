"""Operators without their own lowering: torch's decomposition is run over tracers inside one program.

If the decomposition needs a value (a branch on a tensor), the operator falls back to the CPU (`cpu.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import torch

from ..base import torch_private as private
from ..lowerings.registry import Lowering
from ..programs import stats, tracing
from ..programs.tracing import Untraceable
from ..storage import placement
from ..storage.buffer import spec_of, wrap
from ..storage.dtypes import to_torch
from .cpu import on_cpu
from .operation import Operation
from .read import contiguous_array
from .schema import Signature

Tensor = torch.Tensor


def decomposition_of(op: torch._ops.OpOverload, signature: Signature) -> Any:
    target = op if not signature.written else signature.functional
    if target is None:
        return None
    return private.decomposition_table().get(target)


_running = threading.local()


class Decomposed:
    """An operator run by torch's own decomposition, as one program; on the CPU if it cannot be traced."""

    def __init__(
        self,
        op: torch._ops.OpOverload,
        decomposition: Callable[..., Any],
        operation_of: Callable[..., Any],
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

    def decompose(self, *args: Any, **kwargs: Any) -> Any:
        """The decomposition, refused where it needs the operator itself (`fill` by `full_like` by `fill`)."""
        running = _running.__dict__.setdefault("ops", set())
        if self.functional in running:
            raise Untraceable(f"torch decomposes {self.functional} into itself")
        running.add(self.functional)
        try:
            return self.decomposition(*args, **kwargs)
        finally:
            running.discard(self.functional)

    def result_types(self, args: list[Any]) -> Any:
        """As `Operation.result_types`."""
        return self.operation.result_types(args)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.on_cpu:
            try:
                result = self.operation(*args, **kwargs)
                stats.count_decomposition(self.operation.name)
                return result
            except (Untraceable, jax.errors.ConcretizationTypeError, NotImplementedError) as error:
                self.on_cpu = True
                error.__traceback__ = None  # nobody else sees it
        return on_cpu(self.op, self.signature, args, kwargs)


def over_tensors(
    function: Callable[..., Any], signature: Signature | None = None
) -> Callable[..., Any]:
    """A torch function as a JAX function: substitute tracers, run it, read what it returns."""

    keyword_names = signature.names[signature.positional :] if signature is not None else ()

    def over_arrays(*args: Any) -> Any:
        tensors = [_to_tensor(a) for a in args]
        split = len(tensors) - len(keyword_names) if keyword_names else len(tensors)
        keywords = dict(zip(keyword_names, tensors[split:], strict=False)) if keyword_names else {}
        with tracing.tracing(), torch.no_grad(), torch.device("jax"):
            return _to_arrays(function(*tensors[:split], **keywords))

    return over_arrays


def _to_tensor(a: Any) -> Any:
    if isinstance(a, list):
        return [_to_tensor(item) for item in a]
    if isinstance(a, jax.Array):
        spec = spec_of(a.dtype, tuple(a.shape), placement.current())
        return wrap(a, spec, a.shape, to_torch(a.dtype))
    return a


def _to_arrays(result: Any) -> Any:
    if isinstance(result, list | tuple):
        return [_to_arrays(item) for item in result]
    if isinstance(result, Tensor):
        if result.device.type != "jax":
            return jax.numpy.asarray(result.numpy())
        return contiguous_array(result)
    return result
