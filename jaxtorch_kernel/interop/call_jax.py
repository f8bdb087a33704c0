"""JAX functions in torch code: `call_jax` and `torch_view`.

In eager mode the function is one compiled program per signature, as under `jax.jit`, and a node of torch's autograd
graph. Globals and attributes that its Python code reads are guarded, as in captured code: if one has changed, the
function is retraced. Inside captured code it is traced together with the code around it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import torch

from ..base.ambient import of_jax
from ..capture.dependencies.guards import Guards
from ..capture.dependencies.recorder import Recorder, users_only
from ..capture.signature import by_value
from ..dispatch.read import contiguous_array
from ..operators.bridge import Bridge, avals_of
from ..programs import tracing
from ..programs.compiled import CompiledFunction
from ..programs.trees import Tree, is_tensor, split_jax
from ..storage import placement
from ..storage.buffer import buffer_of

Tensor = torch.Tensor
_MOST = 8  # programs of one signature, which differ in what they read


class _Call(NamedTuple):
    """A function with one signature.

    Attributes:
        bridge: runs it.
        out_tree: structure of its results, and which of them are differentiable; known when it has been traced.
        guards: what else its Python read; None inside captured code, which has its own.
        arrays: the tensors that it read by name, and the arrays that they had, which are constants of its program.
    """

    bridge: Bridge
    out_tree: list[Any]
    guards: Guards | None = None
    arrays: Sequence[tuple[weakref.ref[Tensor], Any]] = ()

    def holds(self) -> bool:
        """Whether what it read is as it was."""
        for reference, array in self.arrays:
            tensor = reference()
            if tensor is None or buffer_of(tensor).array is not array:
                return False
        return self.guards is None or self.guards.hold()


_calls: weakref.WeakKeyDictionary[Any, dict[Any, list[_Call]]] = weakref.WeakKeyDictionary()


def call_jax(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a JAX function with torch tensors of the jax device, without a copy.

    Args:
        function: any JAX function of pytrees. A `jax.custom_vjp`, a Pallas kernel or a sharding constraint in it
            is preserved.
        *args: pytrees whose tensors become arrays of the same shape and dtype. Everything else is passed unchanged
            and is part of the signature: a new value causes a recompilation.
        **kwargs: keyword arguments, treated in the same way.

    Returns:
        The function's result, with tensors for its arrays; gradients of any order flow through them (`jax.vjp`).

    Raises:
        RuntimeError: a tensor is not on the jax device.

    Example:
        >>> import torch, jaxtorch, jax.numpy as jnp
        >>> x = torch.tensor([0.5], device="jax", requires_grad=True)
        >>> y = jaxtorch.call_jax(jnp.sin, x)
        >>> y.backward()
        >>> torch.equal(x.grad, x.detach().cos())
        True
    """
    tensors, tree = split_jax((args, kwargs), is_tensor)
    for t in tensors:
        if t.device.type != "jax":
            raise RuntimeError(
                f"call_jax takes tensors on the jax device, but one is on {t.device}: move it with .jax()"
            )
    arrays = [contiguous_array(t) for t in tensors]
    inputs = [i for i, t in enumerate(tensors) if t.is_floating_point() or t.is_complex()]
    if tracing.active():
        bridge, out_tree, *_ = _make(function, tree, arrays, inputs)
    else:
        key = _key(tree, arrays)
        known = _calls.setdefault(function, {}) if _weakly(function) else {}
        kept = known.setdefault(key, [])
        found = next((call for call in kept if call.holds()), None)
        if found is None:
            found = _traced(function, tree, arrays, inputs)
            kept[:] = [found, *kept][:_MOST]
        bridge, out_tree = found.bridge, found.out_tree
    outputs, others = bridge([tensors[i] for i in inputs], arrays)
    return _rebuild(out_tree[0], outputs, others, bridge)


def torch_view(function: Callable[..., Any]) -> Callable[..., Any]:
    """A JAX function as a torch function: `torch_view(f)(*args)` is `call_jax(f, *args)`.

    Example:
        >>> import torch, jaxtorch, jax.numpy as jnp
        >>> softplus = jaxtorch.torch_view(lambda x: jnp.logaddexp(x, 0.0))
        >>> x = torch.ones(3, device="jax")
        >>> torch.allclose(softplus(x), torch.nn.functional.softplus(x))
        True
    """

    @functools.wraps(function, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return call_jax(function, *args, **kwargs)

    return wrapper


def _weakly(function: Any) -> bool:
    try:
        hash(function)
        _calls.setdefault(function, {})
    except TypeError:
        return False
    return True


def _key(tree: Tree, arrays: list[Any]) -> Any:
    statics = tuple(map(by_value, tree.statics))
    looks = tuple((a.shape, a.dtype, a.sharding) for a in arrays)
    return of_jax(), tree.structure, tuple(tree.indices), statics, looks


def _make(function: Any, tree: Tree, arrays: list[Any], inputs: list[int]) -> _Call:
    """A call whose function is traced where its programs are compiled."""
    flat, out_tree = _flattened(function, tree)
    return _Call(_bridge(function, flat, arrays, inputs), out_tree)


def _traced(function: Any, tree: Tree, arrays: list[Any], inputs: list[int]) -> _Call:
    """A call whose function is traced now, once for all of its programs, and watched."""
    recorder = Recorder(function)
    flat, out_tree = _flattened(lambda *args, **kwargs: recorder.run(args, kwargs), tree)
    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(flat)(*avals_of(arrays))
    _, differentiable = out_tree[0]

    def again(*operands: Any) -> tuple[list[Any], list[Any]]:
        results = jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *operands)
        return results[: sum(differentiable)], results[sum(differentiable) :]

    read = [reference for _, reference in recorder.tensors.values() if reference() is not None]
    known = [(reference, buffer_of(cast(Tensor, reference())).array) for reference in read]
    return _Call(_bridge(function, again, arrays, inputs), out_tree, recorder.notes.finish(), known)


def _flattened(
    function: Any, tree: Tree
) -> tuple[Callable[..., tuple[list[Any], list[Any]]], list[Any]]:
    """The function of the arrays alone, and a box for the structure of its results."""
    out_tree: list[Any] = [None]

    def flat(*operands: Any) -> tuple[list[Any], list[Any]]:
        args, kwargs = tree.filled(operands)
        with users_only():
            results, structure = jax.tree.flatten(function(*args, **kwargs))
        results = [jnp.asarray(r) for r in results]
        differentiable = [jnp.issubdtype(r.dtype, jnp.inexact) for r in results]
        out_tree[0] = structure, differentiable
        return (
            [r for r, s in zip(results, differentiable, strict=True) if s],
            [r for r, s in zip(results, differentiable, strict=True) if not s],
        )

    return flat, out_tree


def _bridge(
    function: Any, flat: Callable[..., Any], arrays: list[Any], inputs: list[int]
) -> Bridge:
    name = getattr(function, "__name__", type(function).__name__)
    where = placement.current()
    if arrays and not isinstance(arrays[0], jax.core.Tracer):
        where = arrays[0].sharding
    return Bridge(CompiledFunction(flat, avals_of(arrays), inputs, name=name), where)


def _rebuild(out_tree: Any, outputs: Sequence[Tensor], others: list[Any], bridge: Bridge) -> Any:
    structure, differentiable = out_tree
    first, second = iter(outputs), (bridge.wrap(o) for o in others)
    return jax.tree.unflatten(structure, [next(first if s else second) for s in differentiable])
