"""JAX functions in torch code: `call_jax` and `torch_view`.

Eagerly the function is one compiled program a signature, as under `jax.jit`, and a node of torch's autograd graph.
Inside captured code it is traced with everything else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import torch

from ..capture.dependencies.recorder import users_only
from ..dispatch import tracing
from ..dispatch.read import contiguous_array
from ..storage import placement
from .bridge import Bridge, avals_of
from .compiled import Compiled

Tensor = torch.Tensor
_bridges: WeakKeyDictionary[Any, dict[Any, tuple[Bridge, list[Any]]]] = WeakKeyDictionary()


def call_jax(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a JAX function with torch tensors of the jax device, without a copy.

    Args:
        function: any JAX function of pytrees. A `jax.custom_vjp`, a Pallas kernel or a sharding constraint in it
            stays what it is.
        *args: pytrees whose tensors become arrays of the same shape and dtype. Everything else is handed over as it
            is and is part of the signature: a new value compiles anew.
        **kwargs: the same by name.

    Returns:
        What the function returns, its arrays as tensors; gradients flow through them (`jax.vjp`), to any order.

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
    leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=lambda leaf: leaf is None)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    for t in tensors:
        if t.device.type != "jax":
            raise RuntimeError(
                f"call_jax takes tensors of the jax device, and one is on {t.device}: move it with .jax()"
            )
    arrays = [contiguous_array(t) for t in tensors]
    inputs = [i for i, t in enumerate(tensors) if t.is_floating_point() or t.is_complex()]
    if tracing.active():
        bridge, out_tree = _make(function, leaves, tree, arrays, inputs)
    else:
        key = _key(leaves, tree, arrays)
        known = _bridges.setdefault(function, {}) if _weakly(function) else {}
        found = known.get(key)
        if found is None:
            found = known[key] = _make(function, leaves, tree, arrays, inputs)
        bridge, out_tree = found
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
        _bridges.setdefault(function, {})
    except TypeError:
        return False
    return True


def _key(leaves: list[Any], tree: Any, arrays: list[Any]) -> Any:
    statics = tuple((type(leaf), leaf) if not isinstance(leaf, Tensor) else None for leaf in leaves)
    return tree, statics, tuple((a.shape, a.dtype, a.sharding) for a in arrays)


def _make(
    function: Any, leaves: list[Any], tree: Any, arrays: list[Any], inputs: list[int]
) -> tuple[Bridge, list[Any]]:
    is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
    statics = [None if t else leaf for t, leaf in zip(is_tensor, leaves, strict=True)]
    out_tree: list[Any] = [None]

    def flat(*operands: Any) -> tuple[list[Any], list[Any]]:
        own = iter(operands)
        filled = [next(own) if t else s for t, s in zip(is_tensor, statics, strict=True)]
        args, kwargs = jax.tree.unflatten(tree, filled)
        with users_only():
            results, structure = jax.tree.flatten(function(*args, **kwargs))
        results = [jnp.asarray(r) for r in results]
        smooth = [jnp.issubdtype(r.dtype, jnp.inexact) for r in results]
        out_tree[0] = structure, smooth
        return (
            [r for r, s in zip(results, smooth, strict=True) if s],
            [r for r, s in zip(results, smooth, strict=True) if not s],
        )

    name = getattr(function, "__name__", type(function).__name__)
    where = placement.current()
    if arrays and not isinstance(arrays[0], jax.core.Tracer):
        where = arrays[0].sharding
    return Bridge(Compiled(flat, avals_of(arrays), inputs, name=name), where), out_tree


def _rebuild(out_tree: Any, outputs: Sequence[Tensor], others: list[Any], bridge: Bridge) -> Any:
    structure, smooth = out_tree
    first, second = iter(outputs), (bridge.wrap(o) for o in others)
    return jax.tree.unflatten(structure, [next(first if s else second) for s in smooth])
