"""An optax transformation for one parameter group of `optax.py`: its state and its step.

This module flattens optax's pytrees. optax sees the parameters as a list, or as a dictionary by name; its state becomes
a dictionary of leaves, named by their paths. A random key in the state is stored as its data, because torch has no
dtype for keys.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import Sharding
from jax.tree_util import PyTreeDef

from ..dispatch.read import contiguous_array
from ..operators.borrow import borrowed
from ..operators.bridge import avals_of
from ..operators.sharing import tensor_of
from ..programs import tracing, untraceable, width
from ..programs.compiled import build
from ..storage import placement
from ..storage.buffer import buffer_of, spec_of, wrap_sized
from ..storage.dtypes import to_numpy, to_torch
from ..storage.transfer import host_values, put
from .tensor_update import TensorUpdate

if TYPE_CHECKING:
    import optax

T = TypeVar("T")
Tensor = torch.Tensor
Array = jax.Array
Aval = jax.ShapeDtypeStruct
_OPERANDS = (Tensor, Array, np.ndarray, float)  # in a step's extra arguments; all others are static
_TORCH_NAME = {"learning_rate": "lr"}


class Rule:
    """A transformation for the parameters of one group.

    Args:
        transformation: optax's transformation.
        count: the number of parameters.
        names: the names of the parameters, or None.

    Attributes:
        hyperparameters: by torch's name, the index of each hyperparameter among the leaves of the state.
    """

    def __init__(
        self, transformation: optax.GradientTransformation, count: int, names: list[str] | None
    ):
        import optax

        self.hyperparameters: dict[str, int] = {}
        self._transformation = optax.with_extra_args_support(transformation)
        self._count = count
        self._names = names
        self._wide = False  # whether optax computes in 64 bits
        self._key_impls: dict[int, object] = {}  # by leaf: the implementation of a random key
        self._structure: PyTreeDef = jax.tree.structure(None)
        self._paths: list[str] = []
        self._step = TensorUpdate("optax step")

    # -- the state ------------------------------------------------------------------------------------------------

    def begin(self, params: Sequence[Tensor]) -> dict[str, Tensor]:
        """The state before the first step: a tensor for each leaf, by name."""
        # optax computes in 32 bits unless a parameter has 64, as it does outside jaxtorch. Captured code is traced with
        # 64-bit dtypes enabled.
        self._wide = any(width.is_wide(to_numpy(p.dtype)) for p in params)
        with torch.no_grad():
            detached = [p.detach() for p in params]
            arrays = [
                contiguous_array(p if p.device.type == "jax" else borrowed(p)) for p in detached
            ]
        for array in arrays:
            untraceable.forbid(array, "passed to a new optimizer (create the optimizer outside)")

        def init(*arrays: Array) -> list[Array]:
            with jax.enable_x64(self._wide):
                state = self._transformation.init(self._tree(arrays))
                leaves, self._structure = jax.tree.flatten_with_path(state)
                self._paths = [
                    jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves
                ]
                return [self._plain(i, jnp.asarray(leaf)) for i, (_, leaf) in enumerate(leaves)]

        avals = avals_of(arrays)
        shardings = self._shardings(jax.eval_shape(init, *avals), arrays)
        leaves = build(init, avals, name="optax init", out=shardings).call(*arrays)
        self.hyperparameters = self._injected()
        return dict(zip(self._paths, map(_tensor_over, leaves), strict=True))

    def _shardings(self, leaves: Sequence[Aval], arrays: Sequence[Array]) -> list[Sharding]:
        """The placement of each leaf of the state: that of its parameter, or a copy on all devices."""
        shardings = [placement.replicated(arrays[0].sharding)] * len(leaves)
        numbered = jax.tree.unflatten(self._structure, range(len(leaves)))
        for node in filter(self._is_tree, jax.tree.leaves(numbered, is_leaf=self._is_tree)):
            for entry, array in zip(self._arrays(node), arrays, strict=True):
                for i in jax.tree.leaves(entry):
                    if leaves[i].shape == array.shape:
                        shardings[i] = array.sharding
        return shardings

    def _plain(self, index: int, leaf: Array) -> Array:
        """A leaf as an array with a dtype of torch."""
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        self._key_impls[index] = jax.random.key_impl(leaf)
        return jax.random.key_data(leaf)

    def _state(self, leaves: Sequence[Array]) -> object:
        """The state as optax's pytree."""
        whole = [
            jax.random.wrap_key_data(leaf, impl=self._key_impls[i])
            if i in self._key_impls
            else leaf
            for i, leaf in enumerate(leaves)
        ]
        return jax.tree.unflatten(self._structure, whole)

    def _tree(self, arrays: Sequence[Array]) -> list[Array] | dict[str, Array]:
        """One array per parameter, as the pytree that optax sees."""
        return list(arrays) if self._names is None else dict(zip(self._names, arrays, strict=True))

    def _arrays(self, tree: Any) -> list[Any]:
        """The entries of such a pytree, in the order of the parameters."""
        return list(tree) if self._names is None else [tree[name] for name in self._names]

    def _is_tree(self, node: object) -> bool:
        """Whether a node of the state has an entry for each parameter."""
        if self._names is None:
            return type(node) is list and len(node) == self._count
        return type(node) is dict and node.keys() == set(self._names)

    # -- hyperparameters ----------------------------------------------------------------------------------------------

    def _injected(self) -> dict[str, int]:
        """The hyperparameters that `optax.inject_hyperparams` keeps in the state, unless several have the same name."""
        numbered = jax.tree.unflatten(self._structure, range(len(self._paths)))
        indices: dict[str, list[int]] = {}
        for node in _injected_nodes(numbered):
            for name, index in node.hyperparams.items():
                if name not in node.hyperparams_states:  # otherwise a schedule sets it
                    indices.setdefault(_TORCH_NAME.get(name, name), []).append(index)
        return {name: same_name[0] for name, same_name in indices.items() if len(same_name) == 1}

    def settings(self, group: dict[str, Any], state: dict[str, Tensor]) -> dict[str, object]:
        """The group's hyperparameters: its own values, otherwise those that the transformation was created with.

        Raises:
            ValueError: the group sets one that the transformation does not have.
        """
        for name in ("lr", "learning_rate"):
            if name in group and name not in self.hyperparameters:
                raise ValueError(
                    f"a parameter group sets {name!r}, which this transformation does not accept. In torch the "
                    "name is 'lr', and the transformation must be created with "
                    "optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3)"
                )
        leaves = list(state.values())
        initial = {name: _number(leaves[index]) for name, index in self.hyperparameters.items()}
        return {name: group.get(name, value) for name, value in initial.items()}

    def _operand(self, value: Tensor | float, like: Tensor) -> Tensor | Array:
        """A hyperparameter's value as an operand of the program."""
        if isinstance(value, Tensor):
            return value
        dtype = to_numpy(like.dtype)
        if tracing.active():
            # A NumPy array becomes a literal of the captured program, with its own dtype.
            return cast(Array, np.asarray(value, dtype))
        where = buffer_of(like).spec.placement if like.device.type == "jax" else placement.current()
        return _constant(value, dtype, placement.replicated(where))

    # -- the step ---------------------------------------------------------------------------------------------------

    def update(
        self, group: dict[str, Any], state: dict[str, Tensor], extra: dict[str, object]
    ) -> None:
        """Perform one step of the group."""
        params = group["params"]
        gradients = [p.grad for p in params]
        has_gradient = tuple(g is not None for g in gradients)
        if not any(has_gradient):
            return
        if any(g is not None and g.layout != torch.strided for g in gradients):
            raise RuntimeError(
                "optax needs dense gradients: create the embedding with sparse=False"
            )
        tensors = list(state.values())
        numbers = [
            self._operand(group[name], tensors[index])
            for name, index in self.hyperparameters.items()
        ]
        leaves, structure = jax.tree.flatten(extra)
        arrays = [i for i, leaf in enumerate(leaves) if isinstance(leaf, _OPERANDS)]
        static = tuple(leaf for leaf in leaves if not isinstance(leaf, _OPERANDS))
        function = functools.partial(self._updated, has_gradient, _Extra(structure, static, arrays))
        read = [*(g for g in gradients if g is not None), *numbers]
        read += [_as_operand(leaves[i]) for i in arrays]
        self._step(
            function, [*params, *tensors], read, (has_gradient, structure, static, tuple(arrays))
        )

    def _updated(
        self, has_gradient: tuple[bool, ...], extra: _Extra, *operands: Array
    ) -> list[Array]:
        """The JAX function of a step: returns the new parameters and state.

        Args:
            has_gradient: which parameters have a gradient.
            extra: the extra arguments of `update`.
            *operands: parameters, state, gradients, hyperparameters, and the arrays among the extra arguments.
        """
        import optax

        with jax.enable_x64(self._wide):
            rest = iter(operands)
            params = [next(rest) for _ in has_gradient]
            old = [next(rest) for _ in self._paths]
            gradients = [
                next(rest) if g else jnp.zeros_like(p)
                for g, p in zip(has_gradient, params, strict=True)
            ]
            leaves = list(old)
            for index in self.hyperparameters.values():
                leaves[index] = jnp.asarray(next(rest), old[index].dtype)
            before = self._state(leaves)
            updates, state = self._transformation.update(
                self._tree(gradients), before, self._tree(params), **extra.filled(rest)
            )
            new = self._arrays(optax.apply_updates(self._tree(params), updates))
            if not all(has_gradient):
                new = _chosen(has_gradient, new, params)
                state = jax.tree.map(
                    lambda b, s: (
                        self._tree(_chosen(has_gradient, self._arrays(s), self._arrays(b)))
                        if self._is_tree(b)
                        else s
                    ),
                    before,
                    state,
                    is_leaf=self._is_tree,
                )
            return [*new, *self._leaves(state, old)]

    def _leaves(self, state: object, old: Sequence[Array]) -> list[Array]:
        """The leaves of the new state, with the shapes and dtypes of the old ones.

        Raises:
            ValueError: the new state has a different structure.
        """
        leaves, structure = jax.tree.flatten(state)
        leaves = [self._plain(i, jnp.asarray(leaf)) for i, leaf in enumerate(leaves)]
        if structure != self._structure or [a.shape for a in leaves] != [a.shape for a in old]:
            raise ValueError(
                "the optax transformation's update returned a state with a different structure from its init's. A step "
                f"must keep the structure: it was {self._structure} and became {structure}"
            )
        return [leaf.astype(o.dtype) for leaf, o in zip(leaves, old, strict=True)]


def _injected_nodes(tree: object) -> Iterable[Any]:
    """The states of `optax.inject_hyperparams` in a state, nested ones too."""
    import optax

    kind = optax.InjectStatefulHyperparamsState
    for node in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, kind)):
        if isinstance(node, kind):
            yield node
            yield from _injected_nodes(node.inner_state)


class _Extra(NamedTuple):
    """The extra arguments of a step without their arrays.

    Attributes:
        structure: of the keyword arguments.
        static: the leaves that are not arrays.
        arrays: the indices of the arrays among the leaves.
    """

    structure: PyTreeDef
    static: tuple[object, ...]
    arrays: list[int]

    def filled(self, operands: Iterable[Array]) -> Any:
        """The keyword arguments of optax's `update`, with these arrays in them."""
        static, arrays = iter(self.static), iter(operands)
        count = len(self.static) + len(self.arrays)
        leaves = [_narrow(next(arrays)) if i in self.arrays else next(static) for i in range(count)]
        return jax.tree.unflatten(self.structure, leaves)


def _as_operand(value: Tensor | Array | np.ndarray | float) -> Tensor:
    if isinstance(value, jax.Array):
        return tensor_of(value, "jax")
    return torch.as_tensor(value, device="jax").detach()


def _narrow(array: Array) -> Array:
    """The array with 32 bits in place of 64, unless JAX is configured for 64."""
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))


def _chosen(has_gradient: Sequence[bool], new: Sequence[T], old: Sequence[T]) -> list[T]:
    """New entries for parameters with a gradient, old entries for the others."""
    return [n if g else o for g, n, o in zip(has_gradient, new, old, strict=True)]


def _tensor_over(array: Array) -> Tensor:
    spec = spec_of(np.dtype(array.dtype), tuple(array.shape), array.sharding)
    return wrap_sized(array, spec, array.shape, to_torch(array.dtype))


def _number(tensor: Tensor) -> int | float:
    """The Python number that a user would write for a scalar tensor: 0.001, not 0.0010000000474974513."""
    value = host_values(buffer_of(tensor).array)
    return float(str(value)) if jnp.issubdtype(value.dtype, jnp.floating) else value.item()


@functools.lru_cache(256)
def _constant(value: float, dtype: np.dtype, where: Sharding) -> Array:
    """A number as an array, cached because most hyperparameters rarely change."""
    return put(np.asarray(value, dtype), where)[0]
