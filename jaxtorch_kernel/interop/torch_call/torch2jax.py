"""`torch2jax`: any torch function as a JAX function, run by torch itself."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from ...base.torch_private import FakeTensor
from ...capture.jax_view import key_data
from ...capture.reach import tensors_in_reach
from ...storage.dtypes import to_numpy
from .calls import Aval, Call, TorchCall, Traits
from .outputs import declared, inferred
from .primitive import bind
from .running import in_order
from .sharded import over_devices

Tensor = torch.Tensor
_LEAF = jax.tree.structure(0)
_LOCK = threading.RLock()
_KEY = Aval((2,), np.dtype(np.uint32))


def torch2jax(
    fn: Callable[..., Any],
    *example_args: Any,
    example_kw: dict[str, Any] | None = None,
    output_shapes: Any = None,
    out_specs: Any = None,
    vmap_method: Literal["auto", "sequential", "expand_dims", "broadcast_all"] = "auto",
    nondiff_argnums: int | Sequence[int] | None = None,
    nondiff_mask: Any = None,
    lock: bool | AbstractContextManager[Any] = False,
    rng: bool = False,
    ordered: bool = False,
    depth: int = 2,
    use_zeros: bool = True,
    use_torch_vjp: bool = True,
    output_sharding_spec: Any = None,
) -> Callable[..., Any]:
    """A torch function as a JAX function that runs it, with torch's own kernels, on JAX's own memory.

    It supports any Python and torch code, including C++ and CUDA extensions, on CPU and CUDA: eagerly and under
    `jax.jit`, `grad`, `jvp`, `vmap`, `hessian`, `checkpoint`, `scan`, `shard_map`, to any order. JAX treats it as
    a pure function: a call may be repeated, or omitted if its result is unused. Derivatives run it again. If
    the code does not need torch's kernels, `jax_view` compiles it as a whole, which is faster and runs on a TPU.

    Arguments and results are pytrees. Tensors in `fn` share JAX's memory and are read-only: a function that writes
    to one receives copies. Python numbers, strings and None are passed to `fn` unchanged.

    Args:
        fn: takes tensors where the JAX function takes arrays, on the same device, and returns tensors.
        *example_args: arguments of the JAX function, or objects with their shapes and dtypes. If given, the shapes of
            the results are inferred immediately, and mistakes are reported immediately. An int64 tensor among them is
            passed to `fn` as int64, even if JAX is limited to 32 bits.
        example_kw: example keyword arguments.
        output_shapes: a pytree of shapes, `jax.ShapeDtypeStruct`s, arrays or tensors that match `fn`'s results.
            Without it `fn` is run on tensors without values (`FakeTensorMode`), once for each signature.
        out_specs: the results are sharded over the mesh of the example arguments according to this
            `PartitionSpec` (or a pytree of them): each device calls `fn` on its shard. Otherwise arguments are
            gathered, unless the call is inside `jax.shard_map`.
        vmap_method: "sequential" calls `fn` once for each element of a `jax.vmap`. All other values make one call
            through `torch.vmap` or, if that fails, one call per element, with a warning.
        nondiff_argnums: positional arguments without gradients.
        nondiff_mask: a pytree like the positional arguments, True for leaves without gradients.
        lock: allow only one call of `fn` at a time, with a lock shared by all such functions or with the given one.
            On several devices and in several threads, calls overlap, and `fn` may modify shared state.
        rng: `fn` draws random numbers: the JAX function takes a key as its first argument, and the same key gives the
            same numbers, also in the derivative.
        ordered: `fn` has effects: each call happens once, in program order. Arguments and results are
            copied, and derivatives and `vmap` are not supported.
        depth: from wrap-torch2jax, like the next three. It has no effect: derivatives of every order are supported.
        use_zeros: has no effect: missing gradients are zeros.
        use_torch_vjp: has no effect: `torch.func` is used where it is needed and works.
        output_sharding_spec: wrap-torch2jax's older name of `out_specs`.

    Raises:
        TypeError: on a call, if the results differ from the declared ones or JAX does not accept them.
        TorchCallError: an error in `fn` under `jax.jit`, as part of JAX's `JaxRuntimeError`. In eager calls `fn`'s own
            error is raised.

    Example:
        >>> import jax, jax.numpy as jnp, torch, jaxtorch
        >>> f = jaxtorch.torch2jax(lambda x: torch.special.gammaln(x).sum())
        >>> jax.jit(jax.grad(f))(jnp.array([1.0, 2.0])).round(3)
        Array([-0.577,  0.423], dtype=float32)
    """
    if not callable(fn):
        raise TypeError(f"torch2jax takes a torch function or module, not {type(fn).__name__}")
    if vmap_method not in ("auto", "sequential", "expand_dims", "broadcast_all"):
        raise ValueError(f"vmap_method must be 'auto' or 'sequential', not {vmap_method!r}")
    _refuse_tensors_of_the_device(fn)
    out_specs = output_sharding_spec if out_specs is None else out_specs
    if out_specs is not None:
        options: dict[str, Any] = {
            "vmap_method": vmap_method,
            "nondiff_argnums": nondiff_argnums,
            "lock": lock,
        }
        options |= {"nondiff_mask": nondiff_mask, "rng": rng, "ordered": ordered}
        alone = functools.partial(torch2jax, fn, **options)
        return over_devices(alone, example_args, output_shapes, out_specs)
    name = getattr(fn, "__name__", type(fn).__name__)
    traits = Traits(name, loop=vmap_method == "sequential", seeded=rng)
    run = fn if not lock else _locked(fn, _LOCK if lock is True else lock)
    run = _seeded(run) if rng else run
    wrapped = _Wrapped(run, traits, output_shapes, in_order if ordered else bind)
    if example_args or example_kw:
        wrapped.prepare((_KEY, *example_args) if rng else example_args, example_kw or {})

    def jax_function(*args: Any, **kwargs: Any) -> Any:
        args = _without_gradients(args, nondiff_argnums, nondiff_mask)
        if rng:
            args = (key_data("torch2jax", args), *args[1:])
        return wrapped(args, kwargs)

    return functools.update_wrapper(jax_function, fn, updated=())


# The other names that wrap-torch2jax has for what is one function here.
torch2jax_with_vjp = torch2jax_without_vjp = torch2jax_auto = torch2jax


class _Wrapped:
    """A torch function, and a `Call` for each signature that it was called with."""

    def __init__(
        self,
        function: Callable[..., Any],
        traits: Traits,
        output_shapes: Any,
        call: Callable[..., Any],
    ):
        self.function, self.traits, self.output_shapes, self.call = (
            function,
            traits,
            output_shapes,
            call,
        )
        self._calls: dict[Any, tuple[Call, Any]] = {}
        self._long: dict[Any, set[int]] = {}  # leaves that are torch's integers in the examples

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=_is_none)
        arrays = [_as_array(leaf) for leaf in leaves if _is_array(leaf)]
        call, structure = self._find(leaves, tree, arrays)
        return jax.tree.unflatten(structure[0], self.call(call, arrays))

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make the call of these arguments, or of their likes, so that mistakes show early."""
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=_is_none)
        self._long[tree] = {
            i for i, x in enumerate(leaves) if getattr(x, "dtype", 0) is torch.int64
        }
        self._find(leaves, tree, [leaf for leaf in leaves if _is_array(leaf)])

    def _find(self, leaves: list[Any], tree: Any, arrays: list[Any]) -> tuple[Call, Any]:
        ins = tuple((tuple(a.shape), _dtype(a)) for a in arrays)
        statics = tuple(None if _is_array(leaf) else (type(leaf), leaf) for leaf in leaves)
        key = (tree, statics, ins, jax.config.jax_enable_x64)  # type: ignore[attr-defined]  # made at import
        try:
            found = self._calls.get(key)
        except TypeError:
            names = {
                type(leaf).__name__
                for leaf in leaves
                if not _is_array(leaf) and type(leaf).__hash__ is None
            }
            raise TypeError(
                f"{self.traits.name} got an argument that is neither an array nor hashable ({', '.join(names)}): "
                "register its class with jax.tree_util.register_pytree_node, or give it a __hash__"
            ) from None
        if found is None:
            avals = [Aval(shape, dtype) for shape, dtype in ins]
            found = self._calls[key] = self._make(leaves, tree, avals, arrays)
        return found

    def _make(
        self, leaves: list[Any], tree: Any, ins: list[Aval], arrays: list[Any]
    ) -> tuple[Call, Any]:
        flat, structure = self._flat(leaves, tree)
        if self.output_shapes is None:
            outs = inferred(flat, ins, self.traits, functools.partial(_examples, arrays))
        else:
            outs, structure[0] = declared(self.output_shapes, ins)
        return TorchCall(flat, ins, outs, self.traits), list(structure)

    def _flat(self, leaves: list[Any], tree: Any) -> tuple[Callable[..., list[Any]], list[Any]]:
        """The function over flat tensors, and where it notes the tree of its results."""
        function, structure, long = self.function, [_LEAF], self._long.get(tree, ())
        places = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]
        statics = [None if _is_array(leaf) else leaf for leaf in leaves]
        one_by_one = tree == jax.tree.structure((tuple(leaves), {})) and len(places) == len(leaves)
        plain = one_by_one and not long

        def flat(*tensors: Tensor) -> list[Any]:
            if plain:
                result = function(*tensors)
            else:
                filled = list(statics)
                for place, tensor in zip(places, tensors, strict=True):
                    # torch's indices and labels have 64 bits, and often must; JAX makes them 32
                    filled[place] = tensor.long() if place in long else tensor
                args, kwargs = jax.tree.unflatten(tree, filled)
                result = function(*args, **kwargs)
            if type(result) is Tensor:
                return [result]
            results, structure[0] = jax.tree.flatten(result)
            return results

        return flat, structure


def _seeded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function after a seed, which leaves torch's random state as it was."""

    def seeded(key: Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(key, FakeTensor):  # there are no values
            return function(*args, **kwargs)
        with _LOCK, torch.random.fork_rng():  # threads share torch's generator
            first, second = key.tolist()
            torch.manual_seed(first << 32 | second)
            return function(*args, **kwargs)

    return seeded


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | Tensor | jax.ShapeDtypeStruct)


def _as_array(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return leaf
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise TypeError(
            "a jax.ShapeDtypeStruct can be an example for torch2jax, but not an argument of the call: pass an array"
        )
    if isinstance(leaf, Tensor):
        return jnp.asarray(leaf.detach().numpy())
    return jnp.asarray(leaf)


def _dtype(array: Any) -> np.dtype:
    if isinstance(array.dtype, torch.dtype):
        return np.dtype(jax.dtypes.canonicalize_dtype(to_numpy(array.dtype)))
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        raise TypeError("torch has no dtype for a JAX key: pass jax.random.key_data(key)")
    return np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))


def _examples(arrays: list[Any]) -> list[Tensor] | None:
    """Tensors with the values of the arguments; None where one has none yet."""
    if any(isinstance(a, jax.core.Tracer | jax.ShapeDtypeStruct) for a in arrays):
        return None
    return [a if isinstance(a, Tensor) else from_dlpack(jnp.asarray(a)) for a in arrays]


def _without_gradients(args: Any, argnums: int | Sequence[int] | None, mask: Any) -> Any:
    """The positional arguments, those of `argnums` and the leaves of `mask` as constants."""
    if mask is not None:
        args = jax.tree.map(lambda m, x: _constant(x) if m else x, mask, args)
    if argnums is None:
        return args
    constant = (argnums,) if isinstance(argnums, int) else argnums
    return tuple(jax.tree.map(_constant, x) if i in constant else x for i, x in enumerate(args))


def _constant(leaf: Any) -> Any:
    return jax.lax.stop_gradient(leaf) if isinstance(leaf, jax.Array) else leaf


def _locked(function: Callable[..., Any], lock: Any) -> Callable[..., Any]:
    def locked(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return function(*args, **kwargs)

    return locked


def _refuse_tensors_of_the_device(function: Callable[..., Any]) -> None:
    """JAX inside of a callback of JAX waits for itself."""
    for tensor in tensors_in_reach(function, []):
        if tensor.device.type == "jax":
            raise TypeError(
                "torch2jax runs torch's own kernels, on CPU or CUDA, but the function uses a tensor on the jax device "
                f"({tensor.dtype}{list(tensor.shape)}): use jax_view, which compiles it into the program, or move the "
                "tensor or module with .cpu()"
            )
