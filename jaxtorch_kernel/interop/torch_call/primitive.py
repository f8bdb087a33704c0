"""The JAX primitive that runs a torch call, and its rules.

The parameter of an equation is a `TorchCall`. The rules create other calls (`calls.py`), so that every JAX transform
produces equations of this one primitive. A program runs each equation in a callback, on XLA's own buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxlib.mlir import ir

from ...base import jax_private as private
from .calls import Batch, TorchCall, derived, has_tangent
from .running import CaughtErrors, Operands, Results, on_cpu, on_gpu, on_host

Array = jax.Array
IrValues = Sequence[ir.Value | Sequence[ir.Value]]

torch_call_p = Primitive("torch_call")
torch_call_p.multiple_results = True


def bind(call: TorchCall, operands: Operands) -> Results:
    """The results of a call, as JAX arrays or tracers."""
    return torch_call_p.bind(*private.equally_varying(operands), call=call)


def _abstract(*avals: ShapedArray, call: TorchCall) -> list[ShapedArray]:
    return [private.aval_like(avals, out.shape, out.dtype) for out in call.outs]


def _eager(*arrays: jax.Array, call: TorchCall) -> Results:
    """Run the call as a program, and wait for it, so that an error in torch code is raised as itself."""
    program, caught = call.__dict__.get("_program") or _make_program(call)
    try:
        return jax.block_until_ready(program(*arrays))
    except jax.errors.JaxRuntimeError as error:
        original = caught.take(error)
    raise original


def _make_program(call: TorchCall) -> tuple[Callable[..., Results], CaughtErrors]:
    eager_call, caught = copy.copy(call), CaughtErrors()
    eager_call.caught = caught
    program = jax.jit(lambda *xs: torch_call_p.bind(*xs, call=eager_call))
    call.__dict__["_program"] = program, caught
    return program, caught


def _jvp(
    primals: Operands, tangents: Sequence[Array | ad.Zero], *, call: TorchCall
) -> tuple[Results, list[Array | ad.Zero]]:
    results = bind(call, primals)
    changes = {
        i: t
        for i, t in enumerate(tangents)
        if not isinstance(t, ad.Zero) and has_tangent(call.ins[i])
    }
    moved: dict[int, Array] = {}
    if changes and call.inexact:
        tangent, taken = call.tangent(tuple(changes))
        # An operand that all elements of a batch share has one tangent. Each element gets a copy of it, and JAX sums
        # the cotangents of the copies.
        each = zip(changes.values(), tangent.ins[len(taken) :], strict=True)
        copies = [jax.numpy.broadcast_to(t, aval.shape) for t, aval in each]
        out = bind(tangent, [*(primals[i] for i in taken), *copies])
        moved = dict(zip(call.inexact, out, strict=True))
    return results, [
        moved[i] if i in moved else ad.Zero(jax.typeof(r).to_tangent_aval())
        for i, r in enumerate(results)
    ]


def _transpose(
    cotangents: Sequence[Array | ad.Zero], *operands: Array | ad.UndefinedPrimal, call: TorchCall
) -> list[Array | ad.Zero | None]:
    linear = [i for i, x in enumerate(operands) if isinstance(x, ad.UndefinedPrimal)]
    given = {i: ct for i, ct in enumerate(cotangents) if not isinstance(ct, ad.Zero)}
    if not given:
        return [ad.Zero(x.aval) if isinstance(x, ad.UndefinedPrimal) else None for x in operands]
    first = call.linear_from
    transposed = call.transpose(tuple(i - first for i in linear), tuple(given))
    primals = [x for x in operands[:first] if not isinstance(x, ad.UndefinedPrimal)]
    pulled = iter(bind(transposed, [*primals, *given.values()]))
    return [next(pulled) if isinstance(x, ad.UndefinedPrimal) else None for x in operands]


def _batch(
    operands: Operands, dims: Sequence[int | None], *, call: TorchCall
) -> tuple[Results, list[int]]:
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    moved, marked = [], []
    for i, (x, d) in enumerate(zip(operands, dims, strict=True)):
        # A linear operand always gets the axis, because the transpose has a cotangent for each element.
        if d is None and i >= call.linear_from:
            x, d = jax.numpy.broadcast_to(x, (size, *x.shape)), 0
        moved.append(x if d is None else jax.numpy.moveaxis(x, d, 0))
        marked.append(d is not None)
    results = bind(derived(Batch, call, size, tuple(marked)), moved)
    return results, [0] * len(results)


def _lowering(run: Callable[[TorchCall, Operands], Results]) -> Callable[..., IrValues]:
    def lower(ctx: mlir.LoweringRuleContext, *operands: ir.Value, call: TorchCall) -> IrValues:
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
