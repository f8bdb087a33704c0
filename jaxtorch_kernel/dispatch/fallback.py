"""Operators without a lowering of their own: by torch's decomposition, then on the CPU. Never a dead end, never silent.

`find` decides once per overload:

1. the overload's own lowering, or its functional overload's;
2. a view operator: torch's Meta kernel makes the alias (`views.py`);
3. torch's decomposition, run over tracers inside one program; where it turns out to need values (a branch on a
   tensor), the operator goes on to
4. the CPU kernel, on copies, with one warning that names the operator and says what it costs.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import jax
import torch

from ..lowerings.registry import LOWERINGS, Lowering
from ..options import config
from ..programs import stats, tracing
from ..storage import placement
from ..storage.buffer import buffer_of, spec_of, wrap
from ..storage.dtypes import to_torch
from .read import contiguous_array
from .schema import Signature, short_name

Tensor = torch.Tensor


def find(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """What runs this overload on the device."""
    from .operation import Operation

    signature = Signature(op)
    lowering = LOWERINGS.get(short_name(op)) if op.namespace == "aten" else None
    if lowering is None and signature.functional is not None and op.namespace == "aten":
        lowering = LOWERINGS.get(short_name(signature.functional))
    if lowering is not None:
        return Operation(op, lowering, copy_cpu=short_name(op) in COPIES_CPU)
    if signature.is_view:
        from ..operators.views import view

        return lambda *args, **kwargs: view(op, *args, **kwargs)
    decomposition = _decomposition(op, signature)
    if decomposition is not None:
        return _Decomposed(op, decomposition)
    return lambda *args, **kwargs: on_cpu(op, signature, args, kwargs)


# Indices may come from the CPU, as on cuda.
COPIES_CPU = {"index.Tensor", "index_put.default", "index_put_.default", "_index_put_impl_.default"}


def _decomposition(op: torch._ops.OpOverload, signature: Signature) -> Any:
    import torch._decomp
    import torch._refs

    target = op if not signature.written else signature.functional
    if target is None:
        return None
    return torch._decomp.decomposition_table.get(target)


_running = threading.local()


class _Decomposed:
    """An operator run by torch's own decomposition, as one program; on the CPU if it cannot be traced."""

    def __init__(self, op: torch._ops.OpOverload, decomposition: Callable[..., Any]):
        from .operation import Operation

        self.op = op
        self.signature = Signature(op)
        self.on_cpu = False
        functional = self.signature.functional
        assert functional is not None
        self.functional = functional
        traced = Lowering(over_tensors(self.decompose, Signature(functional)), decomposed=True)
        self.decomposition = decomposition
        self.operation = Operation(op, traced)

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


class Untraceable(RuntimeError):
    """Torch code under a trace asked for a value that only a run can give, or for what no program can do.

    Attributes:
        advice: what to write instead, where it is not about a value.
    """

    def __init__(self, what: str, advice: str = ""):
        super().__init__(what)
        self.advice = advice
        trace = tracing.current() if tracing.depth else None
        if trace is not None:
            trace.note_refusal(self)


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


# -- the CPU ----------------------------------------------------------------------------------------------------


def on_cpu(
    op: torch._ops.OpOverload,
    signature: Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    announce: bool = True,
) -> Any:
    """Run an operator's CPU kernel on copies, and bring back what it returned or wrote."""
    if announce:
        name = op._schema.name + ("" if op._overloadname == "default" else f".{op._overloadname}")
        _announce(name)
    arguments = signature.complete(args, kwargs)
    copies = [_copied(a) for a in arguments]
    keywords = dict(
        zip(signature.names[signature.positional :], copies[signature.positional :], strict=True)
    )
    result = op(*copies[: signature.positional], **keywords)
    back: dict[int, Tensor] = {}
    for i in signature.written:
        for original, copy in zip(_tensors(arguments[i]), _tensors(copies[i]), strict=True):
            if original.shape != copy.shape:
                original.resize_(copy.shape)
            original.copy_(copy)
            back[id(copy)] = original
    return _returned(result, back)


def _announce(name: str) -> None:
    if tracing.active():
        raise Untraceable(
            f"{name} has no lowering for the jax device and cannot run inside a trace"
        )
    mode = config.fallback
    if mode == "error":
        from ..programs.site import user_line

        raise NotImplementedError(
            f"{name} has no lowering for the jax device{user_line()}, and jaxtorch.config(fallback='error') "
            "forbids running it on the CPU. Move its inputs with .cpu(), or set fallback='warn'."
        )
    if stats.count_fallback(name) == 1 and mode == "warn":
        warnings.warn(
            f"{name} has no lowering for the jax device: it runs on the CPU, at the price of a copy there and "
            "back and of waiting for its inputs. Said once for each operator; `jaxtorch.fallbacks()` counts.",
            stacklevel=4,
        )


def _copied(a: Any) -> Any:
    if isinstance(a, Tensor):
        return a.cpu() if a.device.type == "jax" else a
    if isinstance(a, list | tuple):
        return [_copied(item) for item in a]
    if isinstance(a, torch.device):
        return torch.device("cpu")
    return a


def _tensors(a: Any) -> list[Tensor]:
    if isinstance(a, Tensor):
        return [a]
    return [t for item in a for t in _tensors(item)] if isinstance(a, list | tuple) else []


def _returned(result: Any, back: dict[int, Tensor]) -> Any:
    if isinstance(result, Tensor):
        original = back.get(id(result))
        return result.to("jax") if original is None else original
    if isinstance(result, list | tuple):
        return type(result)(_returned(item, back) for item in result)
    return result


__all__ = ["Untraceable", "buffer_of", "find", "on_cpu", "over_tensors"]
