"""A torch function as a JAX function, under every transform of JAX.

The arrays (or tracers: a batch of `vmap`, a tangent of `jvp`) are wrapped in device tensors, the torch code runs over
them in a trace (`programs/tracing.py`), and its results are returned as arrays. JAX sees only its own primitives, so
all its transforms work, to any order.

For torch, floating-point inputs require gradients. This makes `detach` and `no_grad` visible: a call whose tensors
require no gradient is a constant to JAX's derivatives too (`dispatch/traced.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..base.jax_private import uncommitted
from ..dispatch.read import contiguous_array
from ..programs import tracing
from ..programs.rng import RandomKey
from ..programs.traced_buffer import TracedBuffer
from ..storage.buffer import buffer_of
from .code_trace import CodeTrace
from .errors import CaptureError, explained
from .reach import tensors_in_reach

Tensor = torch.Tensor


def jax_view(function: Callable[..., Any], *, rng: bool = False) -> Callable[..., Any]:
    """Turn a torch function or module into a JAX function.

    The result takes and returns pytrees of `jax.Array`s, eagerly and under `jax.jit`, `grad`, `vmap`, `jvp`,
    `hessian`, `checkpoint`, `shard_map` and their compositions. Tensors that the function closes over, such as a
    module's parameters, are constants to JAX: as for arrays, `jax.jit` keeps the values that they had when it traced.
    Pass everything that is to be differentiated or updated as an argument. For a module:

        jax_view(lambda parameters, x: torch.func.functional_call(module, parameters, x))

    `detach` and `no_grad` stop JAX's derivatives. Writing to an argument in place changes only the function's own copy.
    Tensors created inside are on the jax device. Without `jax_enable_x64`, 64-bit results become 32-bit.

    Args:
        function: torch code whose tensors are on the jax device. Arguments that are not arrays are passed unchanged.
        rng: whether it draws random numbers (dropout). If so, the JAX function takes a key as its first argument; the
            same key gives the same numbers.

    Raises:
        CaptureError: on a call, if the function writes to a tensor that existed before the call, draws random numbers
            without `rng`, or reads the value of a traced tensor.

    Example:
        >>> import jax, jax.numpy as jnp, torch, jaxtorch
        >>> energy = jaxtorch.jax_view(lambda x: (x.sin() * x).sum())
        >>> jax.hessian(energy)(jnp.zeros(2))
        Array([[2., 0.],
               [0., 2.]], dtype=float32)
    """
    if not callable(function):
        raise TypeError(f"jax_view takes a torch function or module, not {type(function).__name__}")

    def view(*args: Any, **kwargs: Any) -> Any:
        key = None
        if rng:
            key, args = key_data("jax_view", args), args[1:]
        leaves, tree = jax.tree.flatten((tuple(args), kwargs))
        leaves = [jnp.asarray(leaf) if _is_array(leaf) else leaf for leaf in leaves]
        with explained(function):
            results, structure = jax.tree.flatten(_run(function, leaves, tree, ViewTrace(key)))
        return jax.tree.unflatten(structure, map(_as_jax_has_it, results))

    return functools.update_wrapper(view, function, updated=())


class ViewTrace(CodeTrace):
    """The trace of one call from JAX. Arrays may be concrete (no transform), so cells are compared by identity.

    Args:
        key: raw key data to draw random numbers from, or None where there must be none.
    """

    def __init__(self, key: Any):
        super().__init__(differentiable=True, eager=False)
        self.key = key

    def contexts(self) -> Iterator[AbstractContextManager[Any]]:
        # First, since it also lets torch's autograd use several threads.
        yield torch.inference_mode(False)
        yield torch.enable_grad()
        yield torch.device("jax")
        yield from super().contexts()

    def read(self, cell: Any) -> Any:
        """The value of the cell; values from before the call are constants."""
        if self.created_here(cell) or self._touched(cell):
            return cell.array
        if not isinstance(cell, RandomKey):
            return super().read(cell)
        if self.key is None:
            raise CaptureError(
                "torch code called from JAX draws random numbers without a key",
                "Use jax_view(function, rng=True) and pass a JAX key first, or call .eval() on the module.",
            )
        self.touch(cell)
        cell.array, self.key = self.key, jax.random.bits(_wrap_key(self.key), (2,), np.uint32)
        return cell.array

    def constant_of(self, cell: Any) -> Any:
        """What the cell holds, to be placed where the arrays of the call are."""
        return uncommitted(super().constant_of(cell))

    def touch(self, cell: Any) -> TracedBuffer | None:
        """Keep what the cell holds from now on in this trace, unless it was made here."""
        return None if self.created_here(cell) else super().touch(cell)

    def overwrite(self, cell: Any, array: Any) -> None:
        """Give a cell a value that does not depend on the one before: a seed needs no key."""
        self.touch(cell)
        cell.array = array

    def _touched(self, cell: Any) -> bool:
        known = self.locals.get(id(cell))
        return known is not None and known.buffer() is cell

    def check_writes(self, gradients: list[tuple[Tensor, Tensor | None]]) -> None:
        """Refuse what a JAX function cannot do.

        Args:
            gradients: tensors that the code can reach, and their `.grad` before; they get it back.

        Raises:
            CaptureError: if a tensor that existed before the call, or its `.grad`, has changed.
        """
        changed: list[Any] = [cell for cell in self.written() if not isinstance(cell, RandomKey)]
        for tensor, gradient in gradients:
            if not tensor.is_leaf:  # a write gave it a history
                tensor.detach_()
            elif tensor.grad is not gradient:
                tensor.grad = gradient
                changed.append(buffer_of(tensor))
        if changed:
            spec = changed[0].spec
            raise CaptureError(
                "torch code called from JAX writes to a tensor that was there before "
                f"({spec.dtype}{list(spec.shape)}), or to its gradient",
                "A JAX function has no effects: pass the tensor as an argument and return its new value. For a "
                "module's running statistics, call .eval(), or pass its buffers to torch.func.functional_call.",
                *self.writers.get(id(changed[0]), (None, None)),
            )


def _run(function: Callable[..., Any], leaves: list[Any], tree: Any, trace: ViewTrace) -> Any:
    """The torch code over these leaves; its result, with arrays for tensors."""
    with tracing.tracing(trace):
        inputs = [_to_tensor(leaf, trace) if _is_array(leaf) else leaf for leaf in leaves]
        args, kwargs = jax.tree.unflatten(tree, inputs)
        gradients = [(t, t.grad) for t in tensors_in_reach(function, []) if t.is_leaf]
        result = jax.tree.map(_to_array, function(*args, **kwargs))
        trace.check_writes(gradients)
    return result


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _to_tensor(array: Any, trace: ViewTrace) -> Tensor:
    """A tensor over an argument, which torch code may write to: not a leaf, and with a `.grad` all the same."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        raise TypeError(
            "torch has no dtype for a JAX key: use jax_view(function, rng=True), which takes one key as its first "
            "argument, or pass jax.random.key_data(key)"
        )
    tensor = trace.input_over(array)
    if tensor.requires_grad:
        tensor.retain_grad()
    return tensor


def _to_array(leaf: Any) -> Any:
    """A result as JAX takes it."""
    if not isinstance(leaf, Tensor):
        if leaf is None or _is_array(leaf) or isinstance(leaf, bool | int | float | complex | str):
            return leaf
        raise TypeError(
            f"the torch function returns a {type(leaf).__name__}, which is not a JAX pytree: return its tensors in a "
            "tuple or dict, or register the class with jax.tree_util.register_pytree_node"
        )
    if leaf.device.type != "jax":
        raise TypeError(
            f"the torch function returns a tensor on {leaf.device}, which JAX cannot see: make it on the jax device"
        )
    return contiguous_array(leaf)


def _as_jax_has_it(leaf: Any) -> Any:
    """A result in the dtype that JAX's configuration allows."""
    if not _is_array(leaf):
        return leaf
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
    return leaf if leaf.dtype == dtype else jax.lax.convert_element_type(leaf, dtype)


def _wrap_key(data: Any) -> Any:
    return jax.random.wrap_key_data(data, impl="threefry2x32")


def key_data(name: str, args: tuple[Any, ...]) -> Any:
    """Raw threefry data of the key, of any kind, that is the first of the arguments of `name(..., rng=True)`.

    Of a threefry key its own, so that `key(7)` is `torch.manual_seed(7)`.
    """
    if not args:
        raise TypeError(f"{name}(..., rng=True) takes a JAX key as its first argument")
    key = args[0]
    if not _is_array(key):
        raise TypeError(
            f"{name}(..., rng=True) takes a JAX key as its first argument, not {type(key).__name__}"
        )
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(key)
    else:
        data = jnp.asarray(key)
    if data.shape == (2,) and data.dtype == np.uint32:
        return data
    return jax.random.bits(key, (2,), np.uint32)
