"""`with_sharding_constraint` for tensors: JAX's function, called through `call_jax`."""

from __future__ import annotations

from typing import TypeVar

import jax

from ..interop.call_jax import call_jax

T = TypeVar("T")


def with_sharding_constraint(x: T, sharding: object) -> T:
    """Constrain how a tensor is sharded over devices in captured code: `jax.lax.with_sharding_constraint`.

    Args:
        x: a tensor, or a pytree of tensors.
        sharding: JAX's own objects, such as a `NamedSharding` of a mesh with `Auto` axes, or a pytree of them.

    Returns:
        The same values; the gradient is constrained in the same way.

    Example:
        >>> import jax, torch, jaxtorch
        >>> from jax.sharding import AxisType, NamedSharding, PartitionSpec
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
        >>> rows = NamedSharding(mesh, PartitionSpec("data", None))
        >>> f = jaxtorch.pure(lambda x: jaxtorch.with_sharding_constraint(x.sin(), rows) * 2)
        >>> f(torch.zeros(2, 2, device="jax"))
        tensor([[0., 0.],
                [0., 0.]], device='jax:0')
    """
    constrained: T = call_jax(_constrained, x, sharding)
    return constrained


def _constrained(x: T, sharding: object) -> T:
    return jax.lax.with_sharding_constraint(x, sharding)
