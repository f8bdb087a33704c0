"""`torch2jax`: any torch function as a JAX function, run by torch itself."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.tree_util import PyTreeDef
from jax.typing import ArrayLike

from ...base.torch_private import FakeTensor
from ...capture.jax_view import key_data
from ...capture.reach import tensors_in_reach
from ...operators.sharing import tensor_of
from ...programs.trees import Tree, split_jax
from ...storage.dtypes import to_numpy
from .calls import Aval, TorchCall, Traits, UserFunction
from .outputs import Flat, declared, inferred, torch_device
from .primitive import bind
from .running import Operands, Results, in_order
from .sharded import over_devices

Tensor = torch.Tensor
Example = jax.Array | np.ndarray | np.generic | Tensor | Aval
_LEAF = jax.tree.structure(0)
_LOCK = threading.RLock()
_KEY = Aval((2,), np.dtype(np.uint32))


def torch2jax(
    fn: Callable[..., object],
    *example_args: object,
    example_kw: dict[str, object] | None = None,
    output_shapes: object = None,
    out_specs: object = None,
    vmap_method: Literal["auto", "sequential", "expand_dims", "broadcast_all"] = "auto",
    nondiff_argnums: int | Sequence[int] | None = None,
    nondiff_mask: object = None,
    lock: bool | AbstractContextManager[object] = False,
    rng: bool = False,
    ordered: bool = False,
    depth: int = 2,
    use_zeros: bool = True,
    use_torch_vjp: bool = True,
    output_sharding_spec: object = None,
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

    Returns:
        A JAX function with the arguments of `fn`; with `rng`, a key comes first.

    Raises:
        TypeError: `fn` is not a torch function or module, or uses a tensor on the jax device; on a call, the results
            differ from the declared ones, or JAX does not accept them.
        ValueError: an option has a wrong value.
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
    _refuse_device_tensors(fn)
    out_specs = output_sharding_spec if out_specs is None else out_specs
    if out_specs is not None:
        on_one_device = functools.partial(
            torch2jax,
            fn,
            vmap_method=vmap_method,
            nondiff_argnums=nondiff_argnums,
            nondiff_mask=nondiff_mask,
            lock=lock,
            rng=rng,
            ordered=ordered,
        )
        return over_devices(on_one_device, example_args, output_shapes, out_specs)
    name = getattr(fn, "__name__", type(fn).__name__)
    traits = Traits(name, loop=vmap_method == "sequential", seeded=rng)
    run = fn if not lock else _locked(fn, _LOCK if lock is True else lock)
    run = _seeded(run) if rng else run
    wrapped = _Wrapped(run, traits, output_shapes, in_order if ordered else bind)
    if example_args or example_kw:
        wrapped.prepare((_KEY, *example_args) if rng else example_args, example_kw or {})

    def jax_function(*args: object, **kwargs: object) -> object:
        args = _without_gradients(args, nondiff_argnums, nondiff_mask)
        if rng:
            args = (key_data("torch2jax", args), *args[1:])
        return wrapped(args, kwargs)

    return functools.update_wrapper(jax_function, fn, updated=())


# wrap-torch2jax has three functions with these names, which are one here.
torch2jax_with_vjp = torch2jax_without_vjp = torch2jax_auto = torch2jax


class _Wrapped:
    """A torch function, with a `TorchCall` for each signature that it was called with."""

    def __init__(
        self,
        function: Callable[..., object],
        traits: Traits,
        output_shapes: object,
        run: Callable[[TorchCall, Operands], Results],
    ):
        self.function, self.traits, self.output_shapes, self.run = (
            function,
            traits,
            output_shapes,
            run,
        )
        self._calls: dict[Hashable, tuple[TorchCall, PyTreeDef]] = {}
        self._int64: dict[object, set[int]] = {}  # operands that are int64 tensors in the examples

    def __call__(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        operands, tree = split_jax((args, kwargs), _is_array)
        arrays = list(map(_as_array, operands))
        call, structure = self._find(tree, arrays)
        return jax.tree.unflatten(structure, self.run(call, arrays))

    def prepare(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Make the call for arguments like these now, so that mistakes are reported early."""
        operands, tree = split_jax((args, kwargs), _is_array)
        self._int64[tree.structure] = {
            i for i, x in enumerate(operands) if getattr(x, "dtype", 0) is torch.int64
        }
        self._find(tree, operands)

    def _find(self, tree: Tree, arrays: Sequence[Example]) -> tuple[TorchCall, PyTreeDef]:
        ins = tuple((tuple(a.shape), _dtype(a)) for a in arrays)
        statics = tuple((type(leaf), leaf) for leaf in tree.statics)
        key = (tree.structure, tuple(tree.indices), statics, ins, jax.config.jax_enable_x64)  # type: ignore[attr-defined]  # made at import
        try:
            known = self._calls.get(key)
        except TypeError:
            names = {type(leaf).__name__ for leaf in tree.statics if type(leaf).__hash__ is None}
            raise TypeError(
                f"{self.traits.name} got an argument that is neither an array nor hashable ({', '.join(names)}): "
                "register its class with jax.tree_util.register_pytree_node, or give it a __hash__"
            ) from None
        if known is None:
            avals = [Aval(shape, dtype) for shape, dtype in ins]
            known = self._calls[key] = self._make(tree, avals, arrays)
        return known

    def _make(
        self, tree: Tree, ins: list[Aval], arrays: Sequence[Example]
    ) -> tuple[TorchCall, PyTreeDef]:
        flat, structures = self._flat(tree)
        if self.output_shapes is None:
            outs = inferred(flat, ins, self.traits, functools.partial(_examples, arrays))
        else:
            outs, structures[0] = declared(self.output_shapes, ins)
        return UserFunction(flat, ins, outs, self.traits), structures[0]

    def _flat(self, tree: Tree) -> tuple[Flat, list[PyTreeDef]]:
        """The function over flat tensors, and a list whose one element it sets to the tree of its results."""
        function, structures, int64 = self.function, [_LEAF], self._int64.get(tree.structure, ())
        count = len(tree.indices)
        plain = tree.structure == jax.tree.structure(((0,) * count, {})) and not int64

        def flat(*tensors: Tensor) -> list[Tensor]:
            if plain:
                result = function(*tensors)
            else:
                # torch's operators often require indices and labels with 64 bits, which JAX reduces to 32
                args, kwargs = tree.filled(
                    t.long() if i in int64 else t for i, t in enumerate(tensors)
                )
                result = function(*args, **kwargs)
            if type(result) is Tensor:
                return [result]
            results, structures[0] = jax.tree.flatten(result)
            return results

        return flat, structures


def _seeded(function: Callable[..., object]) -> Callable[..., object]:
    """The function, run after seeding torch from a key. torch's random state is restored afterwards."""

    def seeded(key: Tensor, *args: object, **kwargs: object) -> object:
        if isinstance(key, FakeTensor):  # it has no value
            return function(*args, **kwargs)
        with _LOCK, torch.random.fork_rng():  # threads share torch's generator
            first, second = key.tolist()
            torch.manual_seed(first << 32 | second)
            return function(*args, **kwargs)

    return seeded


def _is_array(leaf: object) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | Tensor | jax.ShapeDtypeStruct)


def _as_array(leaf: ArrayLike | Tensor | Aval) -> jax.Array:
    if isinstance(leaf, jax.Array):
        return leaf
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise TypeError(
            "a jax.ShapeDtypeStruct can be an example for torch2jax, but not an argument of the call: pass an array"
        )
    if isinstance(leaf, Tensor):
        return jnp.asarray(leaf.detach().numpy())
    return jnp.asarray(leaf)


def _dtype(array: Example) -> np.dtype:
    if isinstance(array.dtype, torch.dtype):
        return np.dtype(jax.dtypes.canonicalize_dtype(to_numpy(array.dtype)))
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        raise TypeError("torch has no dtype for a JAX key: pass jax.random.key_data(key)")
    return np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))


def _examples(arrays: Sequence[Example]) -> list[Tensor] | None:
    """Tensors with the values of the arguments; None if one has no value yet."""
    if any(isinstance(a, jax.core.Tracer | jax.ShapeDtypeStruct) for a in arrays):
        return None
    return [
        a if isinstance(a, Tensor) else tensor_of(jnp.asarray(a), torch_device()) for a in arrays
    ]


def _without_gradients(
    args: tuple[object, ...], argnums: int | Sequence[int] | None, mask: object
) -> tuple[object, ...]:
    """The positional arguments; those of `argnums` and the leaves in `mask` are constants."""
    if mask is not None:
        args = jax.tree.map(lambda m, x: _constant(x) if m else x, mask, args)
    if argnums is None:
        return args
    constant = (argnums,) if isinstance(argnums, int) else argnums
    return tuple(jax.tree.map(_constant, x) if i in constant else x for i, x in enumerate(args))


def _constant(leaf: object) -> object:
    return jax.lax.stop_gradient(leaf) if isinstance(leaf, jax.Array) else leaf


def _locked(
    function: Callable[..., object], lock: AbstractContextManager[object]
) -> Callable[..., object]:
    def locked(*args: object, **kwargs: object) -> object:
        with lock:
            return function(*args, **kwargs)

    return locked


def _refuse_device_tensors(function: Callable[..., object]) -> None:
    """Refuse a function that uses tensors of the device: JAX in a callback of JAX would wait for itself."""
    for tensor in tensors_in_reach(function, []):
        if tensor.device.type == "jax":
            raise TypeError(
                "torch2jax runs torch's own kernels, on CPU or CUDA, but the function uses a tensor on the jax device "
                f"({tensor.dtype}{list(tensor.shape)}): use jax_view, which compiles it into the program, or move the "
                "tensor or module with .cpu()"
            )
