"""torch's higher-order operators on the device: `cond`, `while_loop`, `scan`, `map`, `associative_scan`.

Inside captured code a branch is a `lax.cond` and a loop a `lax.while_loop` or `lax.scan`, so that they can depend on
values. Eagerly, `cond` and `while_loop` run as the equivalent Python statements under torch's own autograd, and each
call of the others is one compiled program. `operators/higher_order.py` routes torch's calls here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

from ..base.torch_private import pytree
from ..programs import tracing
from .bodies import Body, aval_of, call_bodies, needs_gradient, trace_body
from .errors import CaptureError
from .flow import over_iterations
from .held import Held, eager
from .jax_view import ViewTrace
from .results import Output
from .scan import as_carry, as_tensor, check_carry, scan

Tensor = torch.Tensor


# -- cond ---------------------------------------------------------------------------------------------------------


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any
) -> Any:
    """`torch.cond`."""
    if not tracing.active() or not isinstance(pred, Tensor) or pred.device.type != "jax":
        return (true_fn if pred else false_fn)(*operands)
    leaves, structure = pytree.tree_flatten(operands)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    avals = [aval_of(t) for t in tensors]
    branches = [
        trace_body(_over_tensors(f, leaves, structure), avals, "a branch of torch.cond")
        for f in (true_fn, false_fn)
    ]
    _check_branches(*branches)

    def build(bodies: list[Any], key: Any, arrays: list[Any]) -> tuple[list[Any], Any]:
        return jax.lax.cond(arrays[0].reshape(()) != 0, *bodies, key, *arrays[1:])

    differentiable = [
        a.differentiable or b.differentiable
        for a, b in zip(branches[0].outputs, branches[1].outputs, strict=True)
    ]
    flow = [
        a.union(b).moved(lambda i: [i + 1])
        for a, b in zip(branches[0].flow, branches[1].flow, strict=True)
    ]
    results = iter(call_bodies("cond", build, [pred, *tensors], branches, differentiable, flow))
    filled = [next(results) if isinstance(leaf, Output) else leaf for leaf in branches[0].leaves]
    return pytree.tree_unflatten(filled, branches[0].structure)


def _over_tensors(
    function: Callable[..., Any], leaves: list[Any], structure: Any
) -> Callable[..., Any]:
    """The function of the tensors among its arguments."""

    def flat(*tensors: Tensor) -> Any:
        own = iter(tensors)
        filled = [next(own) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return function(*pytree.tree_unflatten(filled, structure))

    return flat


def _check_branches(first: Body, second: Body) -> None:
    """Raise where the branches return different things."""
    if first.structure != second.structure:
        raise CaptureError(
            f"the branches of torch.cond return different structures: {first.structure} and {second.structure}",
            "Return the same structure from both.",
        )
    for i, (a, b) in enumerate(zip(first.leaves, second.leaves, strict=True)):
        if isinstance(a, Output) and isinstance(b, Output):
            if (a.size, a.dtype) == (b.size, b.dtype):
                continue
            a, b = f"{a.dtype}{list(a.size)}", f"{b.dtype}{list(b.size)}"
        elif not isinstance(a, Output) and not isinstance(b, Output) and a == b:
            continue
        raise CaptureError(
            f"result {i} of torch.cond is {a} in one branch and {b} in the other",
            "Both must return tensors of the same shape and dtype: use .to(dtype), .expand(...), torch.full_like(...).",
        )


# -- while_loop ---------------------------------------------------------------------------------------------------


def while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
    **options: Any,
) -> Any:
    """`torch.while_loop`."""
    if options.get("stack_output"):
        raise NotImplementedError(
            "while_loop does not support stack_output: use jaxtorch.scan, which stacks"
        )
    carried = list(carried_inputs)
    if not tracing.active():
        while cond_fn(*carried, *additional_inputs):
            carried = list(body_fn(*carried, *additional_inputs))
        return tuple(carried)
    _, structure = pytree.tree_flatten(carried)
    carry = [as_tensor(leaf) for leaf in carried]
    avals = [aval_of(t) for t in carry]
    test = trace_body(
        lambda *c: cond_fn(*c, *additional_inputs), avals, "the condition of a while_loop"
    )
    body = trace_body(
        lambda *c: as_carry(list(body_fn(*c, *additional_inputs)), structure, "while_loop"),
        avals,
        "the body of a while_loop",
    )
    check_carry(body, carry, "while_loop")
    if test.draws:
        raise CaptureError(
            "the condition of a while_loop draws random numbers", "Draw them in its body."
        )
    if not (test.outputs and len(test.leaves) == 1):
        raise CaptureError(
            "the condition of a while_loop does not return one tensor",
            "Return a boolean scalar tensor.",
        )
    if needs_gradient(carry, [body]) and not isinstance(_root(), ViewTrace):
        raise CaptureError(
            "a gradient cannot flow back through a while_loop, because its number of iterations is unknown",
            "Use jaxtorch.scan with the maximum number of iterations and mask the rest with torch.where, or use "
            "torch.no_grad().",
        )

    def build(bodies: list[Any], key: Any, arrays: list[Any]) -> tuple[list[Any], Any]:
        key, *last = jax.lax.while_loop(
            lambda state: bodies[0](*state)[0][0].reshape(()) != 0,
            lambda state: _key_first(bodies[1](*state)),
            (key, *arrays),
        )
        return last, key

    # To `jax_view` every input may need a gradient; JAX itself refuses where one is asked for.
    differentiable = [output.differentiable for output in body.outputs]
    return tuple(call_bodies("while_loop", build, carry, [test, body], differentiable))


def _root() -> Any:
    trace = tracing.current()
    return None if trace is None else trace.root


def _key_first(result: tuple[list[Any], Any]) -> tuple[Any, ...]:
    return result[1], *result[0]


# -- scan, map, associative_scan ----------------------------------------------------------------------------------


def scan_operator(
    combine_fn: Callable[..., Any],
    init: Sequence[Tensor],
    xs: Sequence[Tensor],
    additional_inputs: Sequence[Any],
) -> Any:
    """`torch._higher_order_ops.scan`, its leading dimension scanned: flat carry and outputs."""
    constants = list(additional_inputs)
    step = functools.partial(_scan_step, combine_fn, len(init))
    (carry, _), ys = scan(step, (list(init), constants), list(xs))
    return [*carry, *ys]


def _scan_step(function: Callable[..., Any], count: int, carry: Any, xs: Any) -> Any:
    state, constants = carry
    flat = list(function(*state, *xs, *constants))
    return (flat[:count], constants), flat[count:]


def map_operator(
    function: Callable[..., Any], xs: Sequence[Tensor], pos_args: Sequence[Any]
) -> Any:
    """`torch._higher_order_ops.map`: flat outputs."""
    return scan(functools.partial(_map_step, function), list(pos_args), list(xs))[1]


def _map_step(function: Callable[..., Any], constants: Any, xs: Any) -> Any:
    return constants, function(*xs, *constants)


def associative_scan(
    combine_fn: Callable[..., Any], xs: Sequence[Tensor], additional_inputs: Sequence[Any]
) -> Any:
    """`torch._higher_order_ops.associative_scan` over the leading dimension: flat outputs."""
    rest = list(xs), tuple(additional_inputs)
    if tracing.active():
        return _associative_scan((combine_fn,), *rest)
    return _eager_associative_scan(Held(combine_fn), *rest)


def _associative_scan(
    functions: tuple[Any, ...], xs: list[Tensor], more: Sequence[Any]
) -> list[Tensor]:
    (combine,) = functions
    element = [jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in map(aval_of, xs)]
    what = "the function of an associative_scan"
    body = trace_body(lambda *ab: list(combine(*ab, *more)), element * 2, what)
    check_carry(body, [x[0] for x in xs], "associative_scan")
    if body.draws:
        raise CaptureError(
            f"{what} draws random numbers",
            "The order of its calls is not defined: draw the numbers beforehand.",
        )

    def build(bodies: list[Any], key: Any, arrays: list[Any]) -> tuple[list[Any], Any]:
        def pairs(a: list[Any], b: list[Any]) -> list[Any]:
            return jax.vmap(lambda *ab: bodies[0](key, *ab)[0])(*a, *b)

        return jax.lax.associative_scan(pairs, arrays), key

    differentiable = [output.differentiable for output in body.outputs]
    count = len(xs)
    flow = over_iterations([f.moved(lambda i: [i % count]) for f in body.flow], count)
    return call_bodies("associative_scan", build, xs, [body], differentiable, flow)


_eager_associative_scan = eager(_associative_scan)
