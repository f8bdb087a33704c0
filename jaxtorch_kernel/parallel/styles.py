"""torch's styles of tensor parallelism, `ColwiseParallel()` and `RowwiseParallel()`, as rules for parameters.

A style says how a layer's parameters are sharded. Its settings for inputs and outputs (`input_layouts`,
`use_local_output`) are ignored: they change no values here, and XLA chooses the sharding of activations.
"""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, cast

from jax.sharding import Mesh, PartitionSpec
from torch import nn

from . import meshes, modules
from .specs import Spec

if TYPE_CHECKING:  # imported only when a user passes one: it takes half a second
    from collections.abc import Mapping

    from torch.distributed.tensor.parallel import ParallelStyle

    Plan: TypeAlias = "Mapping[str, Spec | ParallelStyle]"

# The parameters that each style shards, and along which dimension; the others are replicated.
_LINEAR = {"ColwiseParallel": ("weight bias", 0), "RowwiseParallel": ("weight", 1)}
_EMBEDDING = {"ColwiseParallel": ("weight", 1), "RowwiseParallel": ("weight", 0)}


def as_rules(module: nn.Module, plan: Plan, mesh: Mesh | None, caller: str) -> modules.Rules:
    """The rules of a plan, with each style replaced by specs for the parameters of the layers it names.

    Args:
        module: the module that has the layers.
        plan: from patterns of names of parameters to specs, or of layers to styles.
        mesh: as the user passed it.
        caller: the function that the user called, for messages.

    Raises:
        ValueError: a style's pattern matches no layer; the mesh has several axes, and none is "model" or "tp".
        TypeError: the style is unknown, or the layer is neither Linear nor Embedding.
    """
    rules: dict[str, Spec] = {}
    for pattern, entry in plan.items():
        if _is_style(entry):
            axis = _axis(modules.mesh_for(module, mesh, None, caller), caller)
            for name, layer in _layers(module, pattern, caller):
                for parameter, spec in _specs(layer, name, entry, axis, caller).items():
                    rules.setdefault(f"{name}.{parameter}" if name else parameter, spec)
        else:
            rules[pattern] = cast("Spec", entry)
    return rules


def _is_style(entry: object) -> TypeGuard[ParallelStyle]:
    return type(entry).__module__.startswith("torch.distributed.tensor.parallel")


def _axis(mesh: Mesh, caller: str) -> str:
    names: tuple[str, ...] = mesh.axis_names
    candidates = names if len(names) == 1 else [name for name in ("model", "tp") if name in names]
    if not candidates:
        raise ValueError(
            f"{caller}: styles shard along an axis named 'model' or 'tp', but the mesh has {meshes.listed(names)}: "
            f"rename an axis, or write specs, {{'*.weight': P({names[-1]!r}, None)}}"
        )
    return candidates[0]


def _layers(module: nn.Module, pattern: str, caller: str) -> list[tuple[str, nn.Module]]:
    layers = [each for each in module.named_modules() if fnmatchcase(each[0], pattern)]
    if not layers:
        names = [name for name, _ in module.named_modules() if name]
        close = difflib.get_close_matches(pattern, names, 1, cutoff=0.0)
        example = f". Did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"{caller}: the style of {pattern!r} matches no layer of the module{example}"
        )
    return layers


def _specs(
    layer: nn.Module, name: str, style: ParallelStyle, axis: str, caller: str
) -> dict[str, PartitionSpec]:
    """The spec of each parameter of a layer."""
    kind = type(style).__name__
    if kind not in _LINEAR:
        raise TypeError(
            f"{caller}: {kind} describes activations, whose sharding XLA chooses: omit {name!r}, or constrain the "
            "activations with jaxtorch.with_sharding_constraint"
        )
    if not isinstance(layer, nn.Linear | nn.Embedding):
        raise TypeError(
            f"{caller}: {kind} is for Linear and Embedding, but {name!r} is a {type(layer).__name__}: write specs "
            f"for its parameters, {{'{name}.weight': P({axis!r}, None)}}"
        )
    cut, dimension = (_LINEAR if isinstance(layer, nn.Linear) else _EMBEDDING)[kind]
    spec = PartitionSpec(*[None] * dimension, axis)
    return {
        parameter: spec if parameter in cut.split() else PartitionSpec()
        for parameter, _ in layer.named_parameters(recurse=False)
    }
