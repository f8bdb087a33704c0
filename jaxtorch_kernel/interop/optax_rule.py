"""An optax transformation applied to the parameters of one group of `optax.py`: its state, its step.

This module flattens optax's pytrees: the parameters are a list or a dictionary by name, the state is a set of leaves
named by their paths. A random key in the state is stored as its data, because torch has no such dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import NamedSharding, PartitionSpec

from ..dispatch.read import contiguous_array
from ..operators.borrow import borrowed
from ..operators.bridge import avals_of
from ..operators.sharing import tensor_of
from ..programs import tracing
from ..programs.compiled import build
from ..storage import placement
from ..storage.buffer import buffer_of, spec_of, wrap_sized
from ..storage.dtypes import to_numpy, to_torch
from ..storage.transfer import host_values, put
from .rewriting import Rewriting

Tensor = torch.Tensor
_OPERANDS = (
    Tensor,
    jax.Array,
    np.ndarray,
    float,
)  # among what a step hands to optax; the rest is static
_TORCH_NAME = {"learning_rate": "lr"}


class Rule:
    """A transformation over the parameters of one group.

    Args:
        transformation: optax's.
        count: of the parameters.
        names: of the parameters, or None.

    Attributes:
        hyperparameters: torch's name of each -> its place among the leaves of the state.
    """

    def __init__(self, transformation: Any, count: int, names: list[str] | None):
        import optax

        self.hyperparameters: dict[str, int] = {}
        self._transformation = optax.with_extra_args_support(transformation)
        self._count = count
        self._names = names
        self._wide = False  # whether optax computes in 64 bits
        self._keys: dict[int, Any] = {}  # leaves that are random keys, and of which kind
        self._structure: Any = None
        self._paths: list[str] = []
        self._step = Rewriting("optax step")

    # -- the state ------------------------------------------------------------------------------------------------

    def begin(self, params: Sequence[Tensor]) -> dict[str, Tensor]:
        """The state before the first step: a tensor for each of its leaves, by name."""
        # As by itself, optax computes in 32 bits where no parameter has more. Captured code is traced with 64.
        self._wide = any(p.dtype.to_real().itemsize > 4 for p in params)
        with torch.no_grad():
            detached = [p.detach() for p in params]
            arrays = [
                contiguous_array(p if p.device.type == "jax" else borrowed(p)) for p in detached
            ]
        for array in arrays:
            tracing.forbid(array, "passed to a new optimizer (create the optimizer outside)")

        def init(*arrays: Any) -> list[Any]:
            with jax.enable_x64(self._wide):
                state = self._transformation.init(self._tree(arrays))
                found, self._structure = jax.tree.flatten_with_path(state)
                self._paths = [
                    jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in found
                ]
                return [self._plain(i, jnp.asarray(leaf)) for i, (_, leaf) in enumerate(found)]

        avals = avals_of(arrays)
        places = self._places(jax.eval_shape(init, *avals), arrays)
        leaves = build(init, avals, name="optax init", out=places).call(*arrays)
        self.hyperparameters = self._injected()
        return dict(zip(self._paths, map(_tensor_over, leaves), strict=True))

    def _places(self, leaves: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
        """Where each leaf of the state goes: a parameter's beside it, others to all devices."""
        places = [_beside(arrays[0].sharding)] * len(leaves)
        numbered = jax.tree.unflatten(self._structure, range(len(leaves)))
        for node in filter(self._is_tree, jax.tree.leaves(numbered, is_leaf=self._is_tree)):
            for entry, array in zip(self._arrays(node), arrays, strict=True):
                for i in jax.tree.leaves(entry):
                    if leaves[i].shape == array.shape:
                        places[i] = array.sharding
        return places

    def _plain(self, place: int, leaf: Any) -> Any:
        """A leaf as an array that a tensor can be over."""
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        self._keys[place] = jax.random.key_impl(leaf)
        return jax.random.key_data(leaf)

    def _state(self, leaves: Sequence[Any]) -> Any:
        """optax's pytree."""
        whole = [
            jax.random.wrap_key_data(leaf, impl=self._keys[i]) if i in self._keys else leaf
            for i, leaf in enumerate(leaves)
        ]
        return jax.tree.unflatten(self._structure, whole)

    def _tree(self, arrays: Sequence[Any]) -> Any:
        """One array a parameter, as optax has them."""
        return list(arrays) if self._names is None else dict(zip(self._names, arrays, strict=True))

    def _arrays(self, tree: Any) -> list[Any]:
        return list(tree) if self._names is None else [tree[name] for name in self._names]

    def _is_tree(self, node: Any) -> bool:
        """Whether a node of the state has an entry for each parameter."""
        if self._names is None:
            return type(node) is list and len(node) == self._count
        return type(node) is dict and node.keys() == set(self._names)

    # -- hyperparameters ----------------------------------------------------------------------------------------------

    def _injected(self) -> dict[str, int]:
        """The hyperparameters that `optax.inject_hyperparams` keeps in the state, if only one place has that name."""
        places = jax.tree.unflatten(self._structure, range(len(self._paths)))
        found: dict[str, list[int]] = {}
        for node in _injected_nodes(places):
            for name, place in node.hyperparams.items():
                if name not in node.hyperparams_states:  # a schedule sets it
                    found.setdefault(_TORCH_NAME.get(name, name), []).append(place)
        return {name: own[0] for name, own in found.items() if len(own) == 1}

    def settings(self, group: dict[str, Any], state: dict[str, Tensor]) -> dict[str, Any]:
        """The group's hyperparameters: what it says, else what the transformation was made with.

        Raises:
            ValueError: the group says one that the transformation does not have.
        """
        for name in ("lr", "learning_rate"):
            if name in group and name not in self.hyperparameters:
                raise ValueError(
                    f"a parameter group sets {name!r}, which this transformation does not accept. In torch the "
                    "name is 'lr', and the transformation must be created with "
                    "optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3)"
                )
        leaves = list(state.values())
        made = {name: _number(leaves[place]) for name, place in self.hyperparameters.items()}
        return {name: group.get(name, value) for name, value in made.items()}

    def _operand(self, name: str, value: Any, like: Tensor) -> Any:
        """A hyperparameter's value for the program."""
        if isinstance(value, Tensor):
            return value
        dtype = to_numpy(like.dtype)
        if tracing.active():
            return np.asarray(value, dtype)
        where = buffer_of(like).spec.placement if like.device.type == "jax" else placement.current()
        return _constant(value, dtype, _beside(where))

    # -- the step ---------------------------------------------------------------------------------------------------

    def update(
        self, group: dict[str, Any], state: dict[str, Tensor], extra: dict[str, Any]
    ) -> None:
        """One step of the group."""
        params = group["params"]
        gradients = [p.grad for p in params]
        given = tuple(g is not None for g in gradients)
        if not any(given):
            return
        if any(g is not None and g.layout != torch.strided for g in gradients):
            raise RuntimeError(
                "optax needs dense gradients: create the embedding with sparse=False"
            )
        tensors = list(state.values())
        numbers = [
            self._operand(name, group[name], tensors[place])
            for name, place in self.hyperparameters.items()
        ]
        leaves, structure = jax.tree.flatten(extra)
        arrays = [i for i, leaf in enumerate(leaves) if isinstance(leaf, _OPERANDS)]
        rest = tuple(leaf for leaf in leaves if not isinstance(leaf, _OPERANDS))
        function = functools.partial(self._updated, given, (structure, rest, len(leaves), arrays))
        read = [*(g for g in gradients if g is not None), *numbers]
        read += [_as_operand(leaves[i]) for i in arrays]
        self._step(function, [*params, *tensors], read, (given, structure, rest, tuple(arrays)))

    def _updated(self, given: tuple[bool, ...], extra: Any, *operands: Any) -> list[Any]:
        """New parameters and state: the JAX function of a step."""
        import optax

        with jax.enable_x64(self._wide):
            own = iter(operands)
            params = [next(own) for _ in given]
            old = [next(own) for _ in self._paths]
            gradients = [
                next(own) if g else jnp.zeros_like(p) for g, p in zip(given, params, strict=True)
            ]
            leaves = list(old)
            for place in self.hyperparameters.values():
                leaves[place] = jnp.asarray(next(own), old[place].dtype)
            before = self._state(leaves)
            updates, state = self._transformation.update(
                self._tree(gradients), before, self._tree(params), **_filled(extra, own)
            )
            new = self._arrays(optax.apply_updates(self._tree(params), updates))
            if not all(given):
                new = _chosen(given, new, params)
                state = jax.tree.map(
                    lambda b, s: (
                        self._tree(_chosen(given, self._arrays(s), self._arrays(b)))
                        if self._is_tree(b)
                        else s
                    ),
                    before,
                    state,
                    is_leaf=self._is_tree,
                )
            return [*new, *self._leaves(state, old)]

    def _leaves(self, state: Any, old: Sequence[Any]) -> list[Any]:
        """The new state, leaf by leaf as the old one.

        Raises:
            ValueError: it has another form.
        """
        leaves, structure = jax.tree.flatten(state)
        leaves = [self._plain(i, jnp.asarray(leaf)) for i, leaf in enumerate(leaves)]
        if structure != self._structure or [a.shape for a in leaves] != [a.shape for a in old]:
            raise ValueError(
                "the optax transformation's update returned a state with a different structure from its init's. A step "
                f"must keep the structure: it was {self._structure} and became {structure}"
            )
        return [leaf.astype(o.dtype) for leaf, o in zip(leaves, old, strict=True)]


def _injected_nodes(tree: Any) -> Iterable[Any]:
    import optax

    kind = optax.InjectStatefulHyperparamsState
    for node in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, kind)):
        if isinstance(node, kind):
            yield node
            yield from _injected_nodes(node.inner_state)


def _filled(extra: Any, operands: Iterable[Any]) -> Any:
    """The keywords of `update`, with arrays in the place of tensors."""
    structure, rest, count, arrays = extra
    others = iter(rest)
    own = iter(operands)
    leaves = [_narrow(next(own)) if i in arrays else next(others) for i in range(count)]
    return jax.tree.unflatten(structure, leaves)


def _as_operand(value: Any) -> Tensor:
    if isinstance(value, jax.Array):
        return tensor_of(value, "jax")
    return torch.as_tensor(value, device="jax").detach()


def _narrow(array: Any) -> Any:
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))


def _chosen(given: Sequence[bool], new: Sequence[Any], old: Sequence[Any]) -> list[Any]:
    return [n if g else o for g, n, o in zip(given, new, old, strict=True)]


def _tensor_over(array: Any) -> Tensor:
    spec = spec_of(np.dtype(array.dtype), tuple(array.shape), array.sharding)
    return wrap_sized(array, spec, array.shape, to_torch(array.dtype))


def _number(tensor: Tensor) -> int | float:
    """The Python number that was made an element of this dtype: 0.001, not 0.0010000000474974513."""
    value = host_values(buffer_of(tensor).array)
    return float(str(value)) if jnp.issubdtype(value.dtype, jnp.floating) else value.item()


@functools.lru_cache(256)
def _constant(value: Any, dtype: np.dtype, where: Any) -> Any:
    return put(np.asarray(value, dtype), where)[0]


def _beside(sharding: Any) -> Any:
    """Where a number goes that is computed with beside an array placed like this."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    return sharding
