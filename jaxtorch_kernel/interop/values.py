"""Values across: `to_jax` and `to_torch`, over the same memory where that can be (`operators/sharing.py` says how).

Containers of both worlds are looked into: those that torch knows (a `ModelOutput`) and, within, those that JAX knows
(a flax state, an equinox module). Dictionaries keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch
from torch.utils import _pytree as pytree

from ..operators.sharing import array_of, tensor_of

Tensor = torch.Tensor


def to_jax(tree: Any, *, copy: bool | None = None) -> Any:
    """Torch tensors as `jax.Array`s, without a copy where that can be.

    A tensor of the jax device hands over its array, and keeps nothing of it that a write could reach: a write in place
    gives the tensor a new array.

    A CPU tensor shares its memory, as with `Tensor.numpy()`. JAX takes arrays for immutable: do not write to the
    tensor while the array is in use, or pass `copy=True`. A write is seen through the array, even by a JAX function
    that still runs. `tensor._version` counts the writes. Copied are strides other than row-major, memory that does
    not begin at a multiple of 64 bytes, and tensors on a device where JAX does not run. CUDA tensors take the road of
    CPU tensors; it was not tried on a GPU.

    Shape and dtype stay, 64-bit dtypes too: without `jax_enable_x64`, JAX's functions compute with such an array in
    32 bits, and some warn.

    Args:
        tree: a tensor or a pytree of them. What is no tensor stays as it is.
        copy: True copies always; False raises where a copy would be needed.

    Returns:
        The same structure, with arrays. They are not committed to a device, but for those of the jax device.

    Raises:
        RuntimeError: a tensor requires a gradient (outside of `torch.no_grad()`), is sparse, quantized or on the meta
            device, or its array was donated.
        TypeError: JAX has no such dtype.
        ValueError: `copy=False`, and the memory cannot be shared: the strides are not row-major, or it does not begin
            at a multiple of 64 bytes.

    Example:
        >>> import torch, jaxtorch
        >>> x = torch.arange(3.0, device="jax")
        >>> arrays = jaxtorch.to_jax({"x": x, "name": "abscissa"})
        >>> x += 1
        >>> arrays
        {'x': Array([0., 1., 2.], dtype=float32), 'name': 'abscissa'}
    """
    return _mapped(lambda tensor: array_of(tensor, copy), Tensor, tree, "to_jax")


def to_torch(
    tree: Any, device: torch.device | str | None = None, *, copy: bool | None = None
) -> Any:
    """`jax.Array`s as torch tensors, without a copy where the array is on that device.

    On the jax device, wherever that is, a tensor is over the array itself, and a write in place gives the tensor a
    new array: nothing that torch code does reaches the one that was passed. This is the way for parameters that an
    optimizer is to update.

    On the CPU (or CUDA) the memory is shared, as by `torch.from_dlpack`, and JAX takes arrays for immutable: do not
    write to such a tensor in place, or pass `copy=True`. The tensor's `_version` is 0 as long as nobody wrote. JAX
    copies where an array that is shared is donated.

    Args:
        tree: an array or a pytree of them. What is no `jax.Array` stays as it is, NumPy's arrays too.
        device: where the tensors are. By default torch's default device if one was set (`%jax on` sets jax), else where
            the array is: the CPU, CUDA if torch has it, otherwise jax.
        copy: True copies always; False raises where a copy would be needed.

    Returns:
        The same structure, with tensors of the arrays' shapes and dtypes; they require no gradient.

    Raises:
        TypeError: an array is traced, a random key, or of a dtype that torch lacks (int4).
        RuntimeError: an array was deleted or donated.
        ValueError: `copy=False`, and the array is elsewhere.

    Example:
        >>> import jax.numpy as jnp, jaxtorch
        >>> jaxtorch.to_torch([jnp.ones(2), None])
        [tensor([1., 1.]), None]
        >>> jaxtorch.to_torch(jnp.ones(2), device="jax")
        tensor([1., 1.], device='jax:0')
    """
    return _mapped(lambda array: tensor_of(array, device, copy), jax.Array, tree, "to_torch")


def _mapped(convert: Callable[[Any], Any], kind: type, tree: Any, name: str) -> Any:
    """The tree with `convert` of every leaf of a kind; errors say which."""
    if isinstance(tree, kind):
        return convert(tree)
    leaves, structure = pytree.tree_flatten(tree)
    found = []
    inner: Any = ()

    def within(path: Any, leaf: Any) -> Any:
        nonlocal inner
        inner = path
        return convert(leaf) if isinstance(leaf, kind) else leaf

    try:
        for leaf in leaves:
            inner = ()
            if isinstance(leaf, kind):
                found.append(convert(leaf))
            else:  # nothing, or what JAX knows as a container
                found.append(jax.tree_util.tree_map_with_path(within, leaf))
    except (RuntimeError, TypeError, ValueError) as error:
        path, _ = pytree.tree_flatten_with_path(tree)[0][len(found)]
        error.add_note(f"in {name}, at {pytree.keystr(path)}{jax.tree_util.keystr(inner)}")
        raise
    return pytree.tree_unflatten(found, structure)
