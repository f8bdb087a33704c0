"""A torch function as a JAX function, under every transform of JAX.

The arrays (or tracers: a batch of `vmap`, a tangent of `jvp`) are wrapped in device tensors, the torch code runs over
them in a trace (`programs/tracing.py`), and its results are returned as arrays. JAX sees only its own primitives, so
all its transforms work, in any nesting.

For torch, floating-point inputs require gradients. This makes `detach` and `no_grad` visible: a call whose tensors
require no gradient is a constant to JAX's derivatives too (`dispatch/traced.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.tree_util import PyTreeDef

from ..base import torch_private as private
from ..base.jax_private import uncommitted
from ..dispatch.read import contiguous_array
from ..programs import tracing
from ..programs.rng import RandomKey, key_of_jax
from ..programs.traced_buffer import TracedBuffer
from ..storage.buffer import Buffer, buffer_of
from .code_trace import CodeTrace
from .errors import CaptureError, explained
from .failed_traces import Gradients, undone
from .reach import tensors_in_reach

Tensor = torch.Tensor


def jax_view(function: Callable[..., object], *, rng: bool = False) -> Callable[..., Any]:
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

    Returns:
        A JAX function with the arguments of `function`; with `rng`, a key comes first.

    Raises:
        TypeError: `function` is not callable; on a call, if an argument is a JAX key (without `rng`), or the result is
            not a pytree of tensors.
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

    def view(*args: Any, **kwargs: object) -> object:
        key = None
        if rng:
            key, args = key_data("jax_view", args), args[1:]
        leaves, tree = jax.tree.flatten((tuple(args), kwargs))
        leaves = [jnp.asarray(leaf) if _is_array(leaf) else leaf for leaf in leaves]
        with explained(function):
            results, structure = jax.tree.flatten(_run(function, leaves, tree, ViewTrace(key)))
        return jax.tree.unflatten(structure, map(canonical, results))

    return functools.update_wrapper(view, function, updated=())


class ViewTrace(CodeTrace):
    """The trace of one call from JAX.

    Outside transforms the arrays are concrete, so a tracer in a buffer does not show whether the trace has read it: the
    trace looks buffers up by identity.

    Args:
        key: raw key data to draw random numbers from; None if the code may not draw any.
    """

    def __init__(self, key: jax.Array | None):
        super().__init__(differentiable=True, eager=False)
        self.key = key

    def contexts(self) -> Iterator[AbstractContextManager[object]]:
        # First, since it sets back what other contexts set (see `one_thread.py`).
        yield torch.inference_mode(False)
        # JAX computes with arrays: a transform of torch around the call has nothing to see here.
        yield private.outside_transforms()
        yield torch.enable_grad()
        yield torch.device("jax")
        yield from super().contexts()

    def read(self, buffer: Buffer) -> jax.Array:
        """The value of the buffer; values from before the call are constants."""
        if self.created_here(buffer) or self._touched(buffer):
            return buffer.array
        if not isinstance(buffer, RandomKey):
            return super().read(buffer)
        if self.key is None:
            raise CaptureError(
                "torch code called from JAX draws random numbers without a key",
                "Use jax_view(function, rng=True) and pass a JAX key first, or call .eval() on the module.",
            )
        self.touch(buffer)
        buffer.array, self.key = (
            key_of_jax(self.key),
            jax.random.bits(_wrap_key(self.key), (2,), np.uint32),
        )
        return buffer.array

    def constant_of(self, buffer: Buffer) -> jax.Array:
        """The array of the buffer: its value here, if it has one, which code before may have changed."""
        has_value = self.created_here(buffer) or self._touched(buffer)
        return buffer.array if has_value else super().constant_of(buffer)

    def constant(self, array: jax.Array) -> jax.Array:
        """An array of its own, not committed to a device: JAX places it with the arrays of the call."""
        return uncommitted(super().constant(array))

    def touch(self, buffer: Buffer) -> TracedBuffer | None:
        """Store the value of the buffer in this trace from now on, unless the buffer was created in it."""
        return None if self.created_here(buffer) else super().touch(buffer)

    def overwrite(self, buffer: Buffer, array: jax.Array) -> None:
        """Give a buffer a value that does not depend on its old one, which need not be read: seeding needs no key."""
        self.touch(buffer)
        buffer.array = array

    def _touched(self, buffer: Buffer) -> bool:
        known = self.locals.get(id(buffer))
        return known is not None and known.buffer() is buffer

    def check_writes(self, gradients: Gradients) -> None:
        """Refuse writes to tensors that existed before the call.

        Args:
            gradients: leaves that the code can reach, and their `.grad` before, which is restored.

        Raises:
            CaptureError: if a tensor that existed before the call, or its `.grad`, has changed.
        """
        changed: list[Buffer] = [
            buffer for buffer in self.written() if not isinstance(buffer, RandomKey)
        ]
        for tensor, gradient in gradients:
            if not tensor.is_leaf:  # a write gave it a history
                tensor.detach_()
            elif tensor.grad is not gradient:
                tensor.grad = gradient
                changed.append(buffer_of(tensor))
        if changed:
            spec = changed[0].spec
            raise CaptureError(
                "torch code called from JAX writes to a tensor that existed before the call "
                f"({spec.dtype}{list(spec.shape)}), or to its gradient",
                "A JAX function has no effects: pass the tensor as an argument and return its new value. For a "
                "module's running statistics, call .eval(), or pass its buffers to torch.func.functional_call.",
                *self.writers.get(id(changed[0]), (None, None)),
            )


def _run(
    function: Callable[..., object], leaves: list[object], tree: PyTreeDef, trace: ViewTrace
) -> object:
    """Run the torch code over these leaves; returns its result, with arrays for tensors."""
    with tracing.tracing(trace):
        inputs = [to_tensor(leaf, trace) if _is_array(leaf) else leaf for leaf in leaves]
        args, kwargs = jax.tree.unflatten(tree, inputs)
        before = _gradients(function, trace)
        with undone(before):
            result = jax.tree.map(_to_array, function(*args, **kwargs))
            trace.check_writes(before())
    return result


def _gradients(function: Callable[..., object], trace: ViewTrace) -> Callable[[], Gradients]:
    """Returns the leaves that the code may have given gradients, with their `.grad` before it ran.

    The function names some of them. The trace notes those that an operator reads; a trace around it, earlier ones too.
    """
    noted = trace.root.gradients
    leaves = [reference() for reference, _ in noted.values()]
    leaves += [t for t in tensors_in_reach(function, []) if t.is_leaf]
    before = {id(t): (t, t.grad) for t in leaves if t is not None}

    def gradients() -> Gradients:
        new = ((reference(), gradient) for reference, gradient in noted.values())
        return [*({id(t): (t, g) for t, g in new if t is not None} | before).values()]

    return gradients


def _is_array(leaf: object) -> TypeGuard[jax.Array]:
    """Whether a leaf is an array of JAX or numpy, which have the attributes in common that are used here."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def to_tensor(array: jax.Array, trace: CodeTrace) -> Tensor:
    """A tensor over an argument. Not a leaf, because torch code may write to it, but with a `.grad` like one."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        raise TypeError(
            "torch has no dtype for a JAX key: use jax_view(function, rng=True), which takes one key as its first "
            "argument, or pass jax.random.key_data(key)"
        )
    tensor = trace.input_over(array)
    if tensor.requires_grad:
        tensor.retain_grad()
    return tensor


def _to_array(leaf: object) -> object:
    """A leaf of the result as JAX accepts it: a tensor's array, or the leaf itself."""
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


def canonical(leaf: object) -> object:
    """A result in the dtype that JAX's configuration allows."""
    if not _is_array(leaf):
        return leaf
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
    return leaf if leaf.dtype == dtype else jax.lax.convert_element_type(leaf, dtype)


def _wrap_key(data: jax.Array) -> jax.Array:
    return jax.random.wrap_key_data(data, impl="threefry2x32")


def key_data(name: str, args: tuple[object, ...]) -> jax.Array:
    """Raw threefry data for the key that is the first argument of `name(..., rng=True)`.

    For a threefry key this is the key's own data, so that `key(7)` gives the numbers of `torch.manual_seed(7)`. For a
    key of another kind it is drawn from the key.
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
