"""`scan`: a loop over the first dimension, compiled once for any number of iterations.

The function is traced once, as the body of a `lax.scan` (`bodies.py`). Tensors that it reads from outside become
operands of the loop, so that gradients flow to them. An eager call is one compiled program (`static_functions.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch

from ..base import torch_private as private
from ..base.torch_private import pytree
from ..programs import tracing
from ..programs.trees import split
from .bodies import Body, Bound, aval_of, call_bodies, trace_body
from .flow import over_iterations
from .static_functions import StaticFunctions, eager

Tensor = torch.Tensor
_NUMBERS = (bool, int, float, complex)
Arrays = list[jax.Array]
Carry = tuple[jax.Array, Arrays]  # the random key, and the arrays of the user's carry
# (carry, x) -> (new carry, y): the user's function, over pytrees.
Function = Callable[[Any, Any], tuple[Any, Any]]
Remat = bool | str | Callable[..., bool] | None


def scan(
    function: Function,
    init: object,
    xs: object = None,
    length: int | None = None,
    reverse: bool = False,
    *,
    remat: Remat = False,
) -> tuple[Any, Any]:
    """Loop over the first dimension of `xs` with a carried state: JAX's `lax.scan` for torch code.

    Equivalent to

        ys = []
        for x in xs:
            carry, y = function(carry, x)
            ys.append(y)
        return carry, torch.stack(ys)

    but the function is traced once, and the program has one loop, whatever the length. Gradients flow to `init`, to
    `xs`, and to parameters and other tensors that the function reads; random numbers are those that the Python loop
    would draw. An eager call runs one compiled program per signature; inside `pure` and `jit` it is part of theirs.

    Args:
        function: `(carry, x) -> (new carry, y)`. The new carry has the shapes and dtypes of the old one. `y` may be
            None.
        init: the initial carry: a tensor, a number, or a pytree of them.
        xs: a tensor or a pytree of tensors with equal first dimensions, or None.
        length: the number of iterations; required if `xs` is None.
        reverse: whether to loop from the last element to the first.
        remat: save only the carry of each iteration for the backward pass and recompute the rest (`jax.checkpoint`).
            A policy of `jax.checkpoint_policies`, or its name, selects residuals to save in addition.

    Returns:
        The final carry, and the stacked `y` of all iterations.

    Raises:
        CaptureError: if the function writes to a tensor from outside or reads the value of a tensor.
        TypeError: if `function` is not callable, or the carry changes its structure, a shape or a dtype.
        ValueError: if the lengths of `xs` and `length` differ or none is given, or `xs` holds a tensor without
            dimensions.

    Example:
        >>> import torch, jaxtorch
        >>> xs = torch.arange(4.0, device="jax")
        >>> total, sums = jaxtorch.scan(lambda total, x: (total + x, total + x), 0.0, xs)
        >>> sums
        tensor([0., 1., 3., 6.], device='jax:0')
    """
    if not callable(function):
        raise TypeError(
            f"scan takes a function (carry, x) -> (new carry, y) first, not {type(function).__name__}"
        )
    length = _length(xs, length)
    if private.transformed():
        return _loop(function, init, xs, length, reverse)
    if tracing.active():
        return _scan((function,), init, xs, length, reverse, remat)
    return _eager_scan(StaticFunctions(function), init, xs, length, reverse, remat)


def _scan(
    functions: tuple[Function],
    init: object,
    xs: object,
    length: int,
    reverse: bool,
    remat: Remat,
) -> tuple[Any, Any]:
    (function,) = functions
    first, carry_structure = pytree.tree_flatten(init)
    carry = [as_tensor(leaf) for leaf in first]
    elements, tree = split(xs)
    count = len(carry)

    def flat(*tensors: Tensor) -> tuple[list[Tensor], object]:
        result = function(
            pytree.tree_unflatten(tensors[:count], carry_structure), tree.filled(tensors[count:])
        )
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError("the function of a scan must return a pair: (new carry, y)")
        y = pytree.tree_map_only(_NUMBERS, as_tensor, result[1])
        return as_carry(result[0], carry_structure, "scan"), y

    avals = [aval_of(t) for t in carry]
    avals += [jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in map(aval_of, elements)]
    body = trace_body(flat, avals, "the function of a scan")
    check_carry(body, carry, "scan")

    def build(bodies: list[Bound], key: jax.Array, arrays: Arrays) -> tuple[Arrays, jax.Array]:
        def step(state: Carry, x: Arrays) -> tuple[Carry, Arrays]:
            results, key = with_remat(bodies[0], remat)(state[0], *state[1], *x)
            return (key, results[:count]), results[count:]

        state = (key, arrays[:count])
        (key, last), ys = jax.lax.scan(step, state, arrays[count:], length, reverse)
        return [*last, *ys], key

    differentiable = [output.differentiable for output in body.outputs]
    flow = over_iterations(body.flow, count, length)
    results = call_bodies("scan", build, [*carry, *elements], [body], differentiable, flow)
    last, ys = body.result.filled(results)
    return pytree.tree_unflatten(last, carry_structure), ys


_eager_scan = eager(_scan)


def _loop(
    function: Function, carry: object, xs: object, length: int, reverse: bool
) -> tuple[Any, Any]:
    """The loop in Python: a transform of `torch.func` must see each call."""
    ys = []
    for i in reversed(range(length)) if reverse else range(length):
        x = pytree.tree_map(lambda leaf, i=i: leaf[i] if isinstance(leaf, Tensor) else leaf, xs)
        carry, y = function(carry, x)
        ys.append(y)
    if reverse:
        ys.reverse()
    ys = pytree.tree_map_only(_NUMBERS, as_tensor, ys)
    stacked = pytree.tree_map(
        lambda *leaves: torch.stack(leaves) if isinstance(leaves[0], Tensor) else leaves[0], *ys
    )
    return carry, stacked


def with_remat(function: Bound, remat: Remat) -> Bound:
    """The body of a loop whose backward pass recomputes what `remat` does not save."""
    if remat is False or remat is None:
        return function
    policy = getattr(jax.checkpoint_policies, remat) if isinstance(remat, str) else remat
    # `prevent_cse` is not needed: in a loop, XLA does not merge the recomputation with the first run.
    return jax.checkpoint(function, prevent_cse=False, policy=None if policy is True else policy)


def _length(xs: object, length: int | None) -> int:
    sizes = set()
    for leaf in pytree.tree_leaves(xs):
        if isinstance(leaf, Tensor):
            if not leaf.ndim:
                raise ValueError(
                    "scan loops over the first dimension of xs, but xs holds a 0-dim tensor"
                )
            sizes.add(leaf.shape[0])
    if length is not None:
        sizes.add(length)
    if len(sizes) != 1:
        what = f"differ: {sorted(sizes)}" if sizes else "are not given: pass xs, or length="
        raise ValueError(f"the lengths of a scan {what}")
    return int(sizes.pop())


def as_tensor(leaf: object) -> Tensor:
    """Convert a number or tensor of a carry to a device tensor.

    Raises:
        TypeError: if it is neither, or on another device.
    """
    if isinstance(leaf, _NUMBERS):
        return torch.tensor(leaf, device="jax")
    if not isinstance(leaf, Tensor):
        raise TypeError(f"a carry must hold tensors and numbers, not {type(leaf).__name__}")
    if leaf.device.type != "jax":
        raise TypeError(f"a tensor of the carry is on {leaf.device}: move it with .to('jax')")
    return leaf


def as_carry(carry: object, structure: pytree.TreeSpec, what: str) -> list[Tensor]:
    """The leaves of a new carry.

    Raises:
        TypeError: if its structure differs from that of the old one.
    """
    leaves, after = pytree.tree_flatten(carry)
    if after != structure:
        raise TypeError(
            f"the carry of a {what} must keep its structure: it is {_shown(structure)} before and {_shown(after)} after"
        )
    return [as_tensor(leaf) for leaf in leaves]


def _shown(structure: pytree.TreeSpec) -> str:
    """A structure as text: `(tensor, {'a': tensor})`."""
    leaves = ["tensor"] * structure.num_leaves
    return str(pytree.tree_unflatten(leaves, structure)).replace("'tensor'", "tensor")


def check_carry(body: Body, carry: list[Tensor], what: str) -> None:
    """Check that an iteration does not change a shape or dtype.

    Raises:
        TypeError: if it does.
    """
    for i, (before, after) in enumerate(zip(carry, body.outputs, strict=False)):
        old, new = (tuple(before.shape), before.dtype), (after.size, after.dtype)
        if old != new:
            raise TypeError(
                f"the carry of a {what} must keep shape and dtype: its tensor {i} enters as {old[1]}{list(old[0])} "
                f"and leaves as {new[1]}{list(new[0])}. Give the initial carry the shape and dtype of the later ones."
            )
