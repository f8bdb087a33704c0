"""Conversion of values: `to_jax` and `to_torch`, which share memory where possible (see `operators/sharing.py`).

Containers of both libraries are traversed: torch's pytrees (a `ModelOutput`) and, within them, JAX's pytrees
(a flax state, an equinox module). Dictionaries keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import torch
from jax.tree_util import KeyPath

from ..base.torch_private import pytree
from ..capture.lingering import array_in_trace, tensor_over_tracer
from ..operators.sharing import array_of, tensor_of

Tensor = torch.Tensor
T = TypeVar("T")


def to_jax(tree: object, *, copy: bool | None = None) -> Any:
    """Convert torch tensors to `jax.Array`s, without a copy where possible.

    For a tensor on the jax device the result is its array. Later writes to the tensor do not affect it: an in-place
    write gives the tensor a new array.

    A CPU tensor shares its memory, as with `Tensor.numpy()`. JAX assumes that arrays are immutable: do not write to the
    tensor while the array is in use, or pass `copy=True`. A write is visible through the array, even to a JAX function
    that is still running. `tensor._version` counts the writes. A tensor is copied if its strides are not row-major, if
    its memory is not aligned to 64 bytes, or if JAX does not run on its device. CUDA tensors are handled like CPU
    tensors; this has not been tested on a GPU.

    Shape and dtype are preserved, including 64-bit dtypes: without `jax_enable_x64`, JAX's functions compute
    with such an array in 32 bits, and some warn.

    Args:
        tree: a tensor or a pytree of them. Other leaves are returned unchanged.
        copy: True always copies; False raises if a copy would be needed.

    Returns:
        The same structure, with arrays. Only arrays from the jax device are committed to a device.

    Raises:
        RuntimeError: a tensor requires a gradient (outside `torch.no_grad()`), is sparse, quantized or on the meta
            device, or its array was donated.
        TypeError: JAX has no such dtype.
        ValueError: `copy=False`, and the memory cannot be shared: the strides are not row-major, or it is not aligned
            to 64 bytes.

    Example:
        >>> import torch, jaxtorch
        >>> x = torch.arange(3.0, device="jax")
        >>> arrays = jaxtorch.to_jax({"x": x, "name": "abscissa"})
        >>> x += 1
        >>> arrays
        {'x': Array([0., 1., 2.], dtype=float32), 'name': 'abscissa'}
    """

    def convert(tensor: Tensor) -> jax.Array:
        traced = array_in_trace(tensor)
        return array_of(tensor, copy) if traced is None else traced

    return _mapped(convert, Tensor, tree, "to_jax")


def to_torch(
    tree: object, device: torch.device | str | None = None, *, copy: bool | None = None
) -> Any:
    """Convert `jax.Array`s to torch tensors, without a copy if the array is on the target device.

    On the jax device, on any platform, the tensor wraps the array itself, and an in-place write gives the tensor a new
    array: torch code never modifies the array that was passed. Use this for parameters that an optimizer updates.

    On the CPU (or CUDA) the memory is shared, as with `torch.from_dlpack`, and JAX assumes that arrays are immutable:
    do not write to such a tensor in place, or pass `copy=True`. The tensor's `_version` is 0 until the first write. If
    a shared array is donated, JAX copies it.

    Inside `jax.jit`, `jax.grad` and other transforms the tensor is on the jax device, and torch code works on it as in
    `jax_view`: JAX traces through it. `to_jax` gives the traced array of a result.

    Args:
        tree: an array or a pytree of them. Leaves that are not `jax.Array`s, such as NumPy arrays, are unchanged.
        device: the device of the tensors. By default torch's default device if one was set (`%jax on` sets jax),
            otherwise the array's: the CPU, CUDA if torch has it, or else jax.
        copy: True always copies; False raises if a copy would be needed.

    Returns:
        The same structure, with tensors of the arrays' shapes and dtypes, without `requires_grad` unless traced.

    Raises:
        TypeError: an array is a random key, of a dtype that torch lacks (int4), or traced while `device` is not jax.
        RuntimeError: an array was deleted or donated.
        ValueError: `copy=False`, and the array is on a different device.

    Example:
        >>> import jax.numpy as jnp, jaxtorch
        >>> jaxtorch.to_torch([jnp.ones(2), None])
        [tensor([1., 1.]), None]
        >>> jaxtorch.to_torch(jnp.ones(2), device="jax")
        tensor([1., 1.], device='jax:0')
    """

    def convert(array: jax.Array) -> Tensor:
        if isinstance(array, jax.core.Tracer):
            return tensor_over_tracer(array, device)
        return tensor_of(array, device, copy)

    return _mapped(convert, jax.Array, tree, "to_torch")


def _mapped(convert: Callable[[T], object], kind: type[T], tree: object, name: str) -> Any:
    """The tree with every leaf of a class converted; an error has a note with the path of the leaf."""
    if isinstance(tree, kind):
        return convert(tree)
    leaves, structure = pytree.tree_flatten(tree)
    converted: list[object] = []
    inner: KeyPath = ()

    def within(path: KeyPath, leaf: object) -> object:
        nonlocal inner
        inner = path
        return convert(leaf) if isinstance(leaf, kind) else leaf

    try:
        for leaf in leaves:
            inner = ()
            if isinstance(leaf, kind):
                converted.append(convert(leaf))
            else:  # a container of JAX, or a value that is not converted
                converted.append(jax.tree_util.tree_map_with_path(within, leaf))
    except (RuntimeError, TypeError, ValueError) as error:
        path, _ = pytree.tree_flatten_with_path(tree)[0][len(converted)]
        error.add_note(f"in {name}, at {pytree.keystr(path)}{jax.tree_util.keystr(inner)}")
        raise
    return pytree.tree_unflatten(converted, structure)
