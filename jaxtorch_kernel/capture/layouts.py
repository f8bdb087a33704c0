"""The shardings of a program's inputs on a mesh of other devices: `lower(..., mesh=, shardings=)`.

The mesh is abstract: it has only names and sizes of axes. JAX lowers for it without devices, and the compiling process
fills in the devices of the target.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import jax
from jax.extend.core import ClosedJaxpr
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ..base.units import counted
from ..programs.meshes import named_meshes
from .tpu_chips import chip_of

MeshLike = Mesh | AbstractMesh | Mapping[str, int]
Rule = Callable[[str, tuple[int, ...]], PartitionSpec | None]
Shardings = Mapping[str, PartitionSpec] | Rule
_TARGET = re.compile(r"\w+:(?:0|[1-9][0-9]*)(?:x(?:0|[1-9][0-9]*))*")
_MOST_EXAMPLES = 3


def check_target(target: str) -> None:
    """Raise ValueError if `target` is not the name of a TPU topology. The message names the nearest."""
    if not _TARGET.fullmatch(str(target)):  # it may be of any type
        raise ValueError(
            f"a target names a TPU and its topology, such as {_examples(str(target))}, not {target!r}"
        )
    try:
        chip = chip_of(target)
    except LookupError as error:
        raise ValueError(error.args[0]) from None
    sizes = sizes_of(target)
    # A host has 2 x 2 chips, or those of a topology that is one chip wide.
    rounded = [max(1, n if n == 1 or i > 1 else n + n % 2) for i, n in enumerate(sizes)]
    nearest = [*rounded, *[1] * chip.dimensions][: chip.dimensions]
    if sizes != nearest:
        raise ValueError(
            f"{chip.name} has no topology {target.partition(':')[2]}. Its topologies have {chip.dimensions} sizes, and "
            f"the first two are 1 or even. The nearest is '{chip.name}:{'x'.join(map(str, nearest))}'"
        )
    if math.prod(sizes) > chip.pod.value:
        raise ValueError(
            f"{chip.name} has no topology {target.partition(':')[2]}, which is {math.prod(sizes)} chips: at most "
            f"{chip.pod.value:.0f} are connected with each other"
        )


def _examples(target: str) -> str:
    """Targets of the chip with which a text begins; if there is none, the smallest one."""
    name = re.match(r"\W*(\w*)", target)
    assert name is not None
    try:
        examples = chip_of(name[1].lower()).examples[:_MOST_EXAMPLES]
    except LookupError:
        examples = ["v5e:1x1"]
    return " or ".join(map(repr, examples))


def devices_of(target: str) -> int:
    """The number of devices of a target: one for each chip, but two on some chips."""
    return chip_of(target).devices * math.prod(sizes_of(target))


def sizes_of(target: str) -> list[int]:
    """The sizes of a target's topology.

    Example:
        >>> sizes_of("v5e:2x4")
        [2, 4]
    """
    return [int(size) for size in target.partition(":")[2].split("x")]


def axes_of(spec: PartitionSpec) -> list[str]:
    """The axes of a mesh that a sharding names, in its order.

    Example:
        >>> axes_of(PartitionSpec(("replica", "data"), None, "model"))
        ['replica', 'data', 'model']
    """
    named = [axis for part in spec for axis in (part if isinstance(part, tuple) else (part,))]
    return [axis for axis in named if isinstance(axis, str)]


def mesh_of(mesh: MeshLike | None, target: str) -> AbstractMesh:
    """The abstract mesh of a target's devices; by default they are one axis, "chips".

    Raises:
        ValueError: the mesh has another number of devices than the target.
        TypeError: it is neither a mesh nor the sizes of axes.
    """
    devices = devices_of(target)
    axes: object = {"chips": devices} if mesh is None else mesh
    if isinstance(axes, Mesh | AbstractMesh):
        abstract = axes.abstract_mesh
    elif isinstance(axes, Mapping) and all(isinstance(size, int) for size in axes.values()):
        abstract = AbstractMesh(tuple(axes.values()), tuple(axes))
    else:
        raise TypeError(
            f"mesh= is a mesh of JAX, or the sizes of its axes by name such as {{'data': {devices}}}, not {axes!r}"
        )
    if abstract.size != devices:
        raise ValueError(
            f"the mesh {dict(abstract.shape)} has {abstract.size} devices, but {target!r} has {devices}: "
            "choose sizes whose product is the number of devices"
        )
    return abstract


def check_meshes(program: ClosedJaxpr, target: str) -> None:
    """Raise ValueError if a program names a mesh, as that of an fsdp module, of another size than its target."""
    devices = devices_of(target)
    for sharding in named_meshes(program.jaxpr):
        size = sharding.num_devices
        if size != devices:
            raise ValueError(
                f"the program is divided over {size} devices, but {target!r} has {devices}: choose a topology of "
                f"{size} devices, or lower it before the model is divided (fsdp, tensor_parallel, "
                "with_sharding_constraint)"
            )


@dataclass
class Layout:
    """The shardings of the inputs and results of a program on a mesh.

    Args:
        mesh: the mesh.
        rules: the sharding of inputs by pattern of names ("*.q_proj.weight"), where the first match applies; or a
            function of name and shape. Inputs that no rule names are replicated.
        like: for inputs that are state of an optimizer, the input of their parameter. They get its sharding, unless a
            pattern names them. A function is not asked about them: names such as `optimizer.exp_avg[0]` do not say
            whose state it is, and a parameter that is divided otherwise than its state is exchanged in each step.
        written: for each result, the input that it is the new value of, or None.
    """

    mesh: AbstractMesh
    rules: Shardings | None
    like: Mapping[int, int]
    written: Sequence[int | None]

    def of_inputs(
        self, names: Sequence[str], avals: Sequence[jax.ShapeDtypeStruct]
    ) -> list[NamedSharding]:
        """The sharding of each input.

        Raises:
            ValueError: a pattern matches no input, or a sharding does not divide a shape.
            TypeError: the rules are of another type.
        """
        rule = (
            self.rules
            if callable(self.rules)
            else _by_pattern({} if self.rules is None else self.rules, names)
        )
        unasked = self.like if callable(self.rules) else {}
        specs = [
            None if i in unasked else rule(name, tuple(aval.shape))
            for i, (name, aval) in enumerate(zip(names, avals, strict=True))
        ]
        for i, parameter in self.like.items():
            specs[i] = specs[parameter] if specs[i] is None else specs[i]
        return [
            self._checked(name, tuple(aval.shape), spec or PartitionSpec())
            for name, aval, spec in zip(names, avals, specs, strict=True)
        ]

    def of_results(self, inputs: Sequence[NamedSharding]) -> list[NamedSharding | None]:
        """The sharding of each result: new values keep the old ones' sharding; None lets the compiler choose."""
        return [None if i is None else inputs[i] for i in self.written]

    def _checked(self, name: str, shape: tuple[int, ...], spec: object) -> NamedSharding:
        if not isinstance(spec, PartitionSpec):
            axis = next(iter(self.mesh.shape))
            raise TypeError(
                f"the sharding of {name} is a `jax.sharding.PartitionSpec`, such as P({axis!r}), not {spec!r}"
            )
        if (wrong := self._wrong(shape, spec)) is None:
            return NamedSharding(self.mesh, spec)
        raise ValueError(
            f"{name} has the shape {shape}, which cannot be sharded as {spec} over the mesh {dict(self.mesh.shape)}: "
            f"{wrong}"
        )

    def _wrong(self, shape: tuple[int, ...], spec: PartitionSpec) -> str | None:
        """Why a shape cannot be sharded so; None if it can."""
        axes = axes_of(spec)
        if unknown := [axis for axis in axes if axis not in self.mesh.shape]:
            return f"the mesh has no axis {unknown[0]!r}"
        if repeated := [axis for axis in axes if axes.count(axis) > 1]:
            return f"the axis {repeated[0]!r} is used more than once"
        if len(spec) > len(shape):
            return f"the sharding has {counted(len(spec), 'entry', 'entries')} for {counted(len(shape), 'dimension')}"
        try:
            NamedSharding(self.mesh, spec).shard_shape(shape)
        except ValueError:
            return "shard another dimension, or replicate it"
        return None


def _by_pattern(patterns: object, names: Sequence[str]) -> Rule:
    if not isinstance(patterns, Mapping) or not all(isinstance(p, str) for p in patterns):
        raise TypeError(
            "shardings= has a PartitionSpec for each pattern of names, such as {'*.weight': P('data')}, or is a "
            f"function of name and shape, not {patterns!r}"
        )
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f"no input of the program matches {pattern!r}; its inputs are {', '.join(names[:8])}"
                + (", ..." if len(names) > 8 else "")
            )

    def rule(name: str, shape: tuple[int, ...]) -> PartitionSpec | None:
        return next((s for p, s in patterns.items() if fnmatchcase(name, p)), None)

    return rule
