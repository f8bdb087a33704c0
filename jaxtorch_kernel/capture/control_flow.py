"""torch's higher-order operators on the device: `cond`, `while_loop`, `scan`, `map`, `associative_scan`.

Inside captured code a branch is a `lax.cond` and a loop a `lax.while_loop` or `lax.scan`, so that they can depend on
values. Eagerly, `cond` and `while_loop` run as the equivalent Python statements under torch's own autograd, and each
call of the others is one compiled program. `operators/higher_order.py` routes torch's calls here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import torch

from ..base import torch_private as private
from ..base.torch_private import pytree
from ..programs import tracing
from ..programs.trees import is_device_tensor, split
from .bodies import Body, Bound, aval_of, call_bodies, needs_gradient, trace_body
from .errors import CaptureError
from .flow import over_iterations
from .jax_view import ViewTrace
from .results import Output
from .scan import as_carry, as_tensor, check_carry, scan
from .static_functions import StaticFunctions, eager

Tensor = torch.Tensor
Arrays = list[jax.Array]


# -- cond ---------------------------------------------------------------------------------------------------------


def cond(
    pred: object,
    true_fn: Callable[..., object],
    false_fn: Callable[..., object],
    operands: Sequence[object],
) -> object:
    """`torch.cond`."""
    if not tracing.active() or not is_device_tensor(pred):
        return (true_fn if pred else false_fn)(*operands)
    tensors, tree = split(operands)
    avals = [aval_of(t) for t in tensors]
    branches = [
        trace_body(lambda *t, f=f: f(*tree.filled(t)), avals, "a branch of torch.cond")
        for f in (true_fn, false_fn)
    ]
    _check_branches(*branches)

    def build(bodies: list[Bound], key: jax.Array, arrays: Arrays) -> tuple[Arrays, jax.Array]:
        return jax.lax.cond(arrays[0].reshape(()) != 0, *bodies, key, *arrays[1:])

    differentiable = [
        a.differentiable or b.differentiable
        for a, b in zip(branches[0].outputs, branches[1].outputs, strict=True)
    ]
    flow = [
        a.union(b).renumbered(lambda i: [i + 1])
        for a, b in zip(branches[0].flow, branches[1].flow, strict=True)
    ]
    results = call_bodies("cond", build, [pred, *tensors], branches, differentiable, flow)
    return branches[0].result.filled(results)


def cond_in_transforms(
    pred: object,
    true_fn: Callable[..., object],
    false_fn: Callable[..., object],
    operands: Sequence[object],
) -> object:
    """`torch.cond` under `torch.vmap` and the other transforms of `torch.func`.

    A batch may need both branches, and so may a value that is not known yet: both run, and their results are selected.
    """
    if not isinstance(pred, Tensor) or not (private.is_batched(pred) or tracing.active()):
        return (true_fn if pred else false_fn)(*operands)
    (ones, tree), (others, other_tree) = (
        pytree.tree_flatten(branch(*operands)) for branch in (true_fn, false_fn)
    )
    if tree != other_tree:
        raise _other_structure(tree, other_tree)
    pred = pred.reshape(()) != 0
    pairs = enumerate(zip(ones, others, strict=True))
    return pytree.tree_unflatten([_selected(pred, i, a, b) for i, (a, b) in pairs], tree)


def _selected(pred: Tensor, index: int, a: object, b: object) -> object:
    """A result of the branches; what is no tensor cannot depend on the predicate."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.where(pred, a, b)
    if isinstance(a, Tensor) or isinstance(b, Tensor) or a != b:
        raise _other_result(index, a, b)
    return a


def _check_branches(first: Body, second: Body) -> None:
    """Raise CaptureError if the branches return different structures, values, shapes or dtypes."""
    one, other = first.result, second.result
    if one.structure != other.structure:
        raise _other_structure(one.structure, other.structure)
    pairs = zip(one.leaves(first.outputs), other.leaves(second.outputs), strict=True)
    for i, (a, b) in enumerate(pairs):
        if isinstance(a, Output) and isinstance(b, Output):
            if (a.size, a.dtype) == (b.size, b.dtype):
                continue
            a, b = f"{a.dtype}{list(a.size)}", f"{b.dtype}{list(b.size)}"
        elif not isinstance(a, Output) and not isinstance(b, Output) and a == b:
            continue
        raise _other_result(i, a, b)


def _other_structure(one: object, other: object) -> CaptureError:
    return CaptureError(
        f"the branches of torch.cond return different structures: {one} and {other}",
        "Return the same structure from both.",
    )


def _other_result(index: int, one: object, other: object) -> CaptureError:
    return CaptureError(
        f"result {index} of torch.cond is {one} in one branch and {other} in the other",
        "Both must return tensors of the same shape and dtype: use .to(dtype), .expand(...), torch.full_like(...).",
    )


# -- while_loop ---------------------------------------------------------------------------------------------------


def while_loop(
    cond_fn: Callable[..., object],
    body_fn: Callable[..., object],
    carried_inputs: Sequence[object],
    additional_inputs: Sequence[object] = (),
    **options: object,
) -> object:
    """`torch.while_loop`."""
    if options.get("stack_output"):
        raise NotImplementedError(
            "while_loop does not support stack_output: use jaxtorch.scan, which stacks"
        )
    carried = list(carried_inputs)
    if not tracing.active():
        while cond_fn(*carried, *additional_inputs):
            carried = _listed(body_fn(*carried, *additional_inputs))
        return tuple(carried)
    _, structure = pytree.tree_flatten(carried)
    carry = [as_tensor(leaf) for leaf in carried]
    avals = [aval_of(t) for t in carry]
    test = trace_body(
        lambda *c: cond_fn(*c, *additional_inputs), avals, "the condition of a while_loop"
    )
    body = trace_body(
        lambda *c: as_carry(_listed(body_fn(*c, *additional_inputs)), structure, "while_loop"),
        avals,
        "the body of a while_loop",
    )
    check_carry(body, carry, "while_loop")
    _check_while_loop(test, body, carry)

    def build(bodies: list[Bound], key: jax.Array, arrays: Arrays) -> tuple[Arrays, jax.Array]:
        key, *last = jax.lax.while_loop(
            lambda state: bodies[0](*state)[0][0].reshape(()) != 0,
            lambda state: _key_first(bodies[1](*state)),
            (key, *arrays),
        )
        return last, key

    # Under `jax_view` every input may need a gradient: JAX itself raises an error if one is requested.
    differentiable = [output.differentiable for output in body.outputs]
    return tuple(call_bodies("while_loop", build, carry, [test, body], differentiable))


def _check_while_loop(test: Body, body: Body, carry: list[Tensor]) -> None:
    if test.draws:
        raise CaptureError(
            "the condition of a while_loop draws random numbers", "Draw them in its body."
        )
    if not (test.outputs and len(test.result.statics) == 1):
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


def _root() -> tracing.Trace | None:
    trace = tracing.current()
    return None if trace is None else trace.root


def _key_first(result: tuple[Arrays, jax.Array]) -> tuple[jax.Array, ...]:
    return result[1], *result[0]


def _listed(result: object) -> list[object]:
    """The results of a user's function as a list.

    Raises:
        TypeError: if it did not return a list or a tuple.
    """
    if not isinstance(result, list | tuple):
        raise TypeError(f"the function must return a list or tuple, not {type(result).__name__}")
    return list(result)


# -- scan, map, associative_scan ----------------------------------------------------------------------------------


def scan_operator(
    combine_fn: Callable[..., object],
    init: Sequence[Tensor],
    xs: Sequence[Tensor],
    additional_inputs: Sequence[object],
) -> list[object]:
    """`torch._higher_order_ops.scan` over the leading dimension: flat carry and outputs."""
    constants = list(additional_inputs)
    step = functools.partial(_scan_step, combine_fn, len(init))
    (carry, _), ys = scan(step, (list(init), constants), list(xs))
    return [*carry, *ys]


_State = tuple[list[object], list[object]]  # the carry, and the inputs that no iteration changes


def _scan_step(
    function: Callable[..., object], count: int, carry: _State, xs: list[object]
) -> tuple[_State, list[object]]:
    state, constants = carry
    flat = _listed(function(*state, *xs, *constants))
    return (flat[:count], constants), flat[count:]


def map_operator(
    function: Callable[..., object],
    xs: Sequence[Tensor],
    pos_args: Sequence[object],
    mutated_arg_indices: str = "",
) -> object:
    """`torch._higher_order_ops.map`: flat outputs. From torch 2.15 on, graphs list the arguments that are written."""
    if mutated_arg_indices:
        raise CaptureError(
            "the function of a map writes to its arguments", "Return the new values instead."
        )
    return scan(functools.partial(_map_step, function), list(pos_args), list(xs))[1]


def _map_step(
    function: Callable[..., object], constants: list[object], xs: list[object]
) -> tuple[list[object], object]:
    return constants, function(*xs, *constants)


def associative_scan(
    combine_fn: Callable[..., object], xs: Sequence[Tensor], additional_inputs: Sequence[object]
) -> list[Tensor]:
    """`torch._higher_order_ops.associative_scan` over the leading dimension: flat outputs."""
    rest = list(xs), tuple(additional_inputs)
    if tracing.active():
        return _associative_scan((combine_fn,), *rest)
    return _eager_associative_scan(StaticFunctions(combine_fn), *rest)


def _associative_scan(
    functions: tuple[Callable[..., object], ...], xs: list[Tensor], more: Sequence[object]
) -> list[Tensor]:
    (combine,) = functions
    element = [jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in map(aval_of, xs)]
    what = "the function of an associative_scan"
    body = trace_body(lambda *ab: _listed(combine(*ab, *more)), element * 2, what)
    check_carry(body, [x[0] for x in xs], "associative_scan")
    if body.draws:
        raise CaptureError(
            f"{what} draws random numbers",
            "The order of its calls is not defined: draw the numbers beforehand.",
        )

    def build(bodies: list[Bound], key: jax.Array, arrays: Arrays) -> tuple[Arrays, jax.Array]:
        def pairs(a: Arrays, b: Arrays) -> Arrays:
            return jax.vmap(lambda *ab: bodies[0](key, *ab)[0])(*a, *b)

        return jax.lax.associative_scan(pairs, arrays), key

    differentiable = [output.differentiable for output in body.outputs]
    count = len(xs)
    flow = over_iterations([f.renumbered(lambda i: [i % count]) for f in body.flow], count)
    return call_bodies("associative_scan", build, xs, [body], differentiable, flow)


_eager_associative_scan = eager(_associative_scan)
