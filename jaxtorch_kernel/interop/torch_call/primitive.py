"""The primitive of a torch call, with JAX's rules for it.

An equation's parameter is a `TorchCall`. Its rules create other calls (`calls.py`), so every JAX transform reduces to
equations of this one primitive, which a program runs in a callback on XLA's own buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ...base import jax_private as private
from .calls import Batch, TorchCall, derived, has_tangent
from .running import Caught, on_cpu, on_gpu, on_host

torch_call_p = Primitive("torch_call")
torch_call_p.multiple_results = True


def bind(call: TorchCall, operands: Sequence[Any]) -> list[Any]:
    """The results of a call, as JAX arrays or tracers."""
    return torch_call_p.bind(*private.equally_varying(operands), call=call)


def _abstract(*avals: Any, call: TorchCall) -> list[Any]:
    return [private.aval_like(avals, out.shape, out.dtype) for out in call.outs]


def _eager(*arrays: Any, call: TorchCall) -> list[Any]:
    """A separate program, which is waited for, so that an error in torch code is raised as that error."""
    program, caught = call.__dict__.get("_program") or _make_program(call)
    try:
        return jax.block_until_ready(program(*arrays))
    except jax.errors.JaxRuntimeError as error:
        found = caught.take(error)
    raise found


def _make_program(call: TorchCall) -> tuple[Callable[..., Any], Caught]:
    watched = copy.copy(call)
    watched.caught = Caught()
    made = call.__dict__["_program"] = (
        jax.jit(lambda *xs: torch_call_p.bind(*xs, call=watched)),
        watched.caught,
    )
    return made


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: TorchCall) -> Any:
    results = bind(call, primals)
    wrt = tuple(
        i for i, t in enumerate(tangents) if type(t) is not ad.Zero and has_tangent(call.ins[i])
    )
    moved = {}
    if wrt and call.inexact:
        tangent, kept = call.tangent(wrt)
        # The tangent of what all elements of a batch share is shared too: they get one each, and JAX sums cotangents.
        each = tangent.ins[len(kept) :]
        changes = [
            jax.numpy.broadcast_to(tangents[i], a.shape) for i, a in zip(wrt, each, strict=True)
        ]
        moved = dict(
            zip(call.inexact, bind(tangent, [*(primals[i] for i in kept), *changes]), strict=True)
        )
    return results, [
        moved[i] if i in moved else ad.Zero(jax.typeof(r).to_tangent_aval())
        for i, r in enumerate(results)
    ]


def _transpose(cotangents: Sequence[Any], *operands: Any, call: TorchCall) -> list[Any]:
    asked = [i for i, x in enumerate(operands) if ad.is_undefined_primal(x)]
    outs = tuple(i for i, ct in enumerate(cotangents) if type(ct) is not ad.Zero)
    if not outs:
        return [ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in operands]
    first = call.linear_from
    transposed = call.transpose(tuple(i - first for i in asked), outs)
    pulled = iter(bind(transposed, [*operands[:first], *(cotangents[i] for i in outs)]))
    return [next(pulled) if ad.is_undefined_primal(x) else None for x in operands]


def _batch(operands: Sequence[Any], dims: Sequence[Any], *, call: TorchCall) -> Any:
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    moved, marked = [], []
    for i, (x, d) in enumerate(zip(operands, dims, strict=True)):
        # A linear operand gets the axis in any case: the transpose has a cotangent for each element.
        if d is None and i >= call.linear_from:
            x, d = jax.numpy.broadcast_to(x, (size, *x.shape)), 0
        moved.append(x if d is None else jax.numpy.moveaxis(x, d, 0))
        marked.append(d is not None)
    results = bind(derived(Batch, call, size, tuple(marked)), moved)
    return results, [0] * len(results)


def _lowering(run: Callable[[TorchCall, Sequence[Any]], Any]) -> Callable[..., Any]:
    def lower(ctx: Any, *operands: Any, call: TorchCall) -> Any:
        return mlir.lower_fun(lambda *xs: run(call, xs), multiple_results=True)(ctx, *operands)

    return lower


torch_call_p.def_impl(_eager)
torch_call_p.def_abstract_eval(_abstract)
ad.primitive_jvps[torch_call_p] = _jvp
ad.primitive_transposes[torch_call_p] = _transpose
batching.primitive_batchers[torch_call_p] = _batch
mlir.register_lowering(torch_call_p, _lowering(on_host))
mlir.register_lowering(torch_call_p, _lowering(on_cpu), platform="cpu")
for _platform in ("cuda", "rocm"):
    mlir.register_lowering(torch_call_p, _lowering(on_gpu), platform=_platform)
