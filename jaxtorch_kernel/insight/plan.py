"""`plan`: a training step compiled for several kinds and numbers of chips, and what it needs on each.

Each choice is the program that those chips would run, with the report of `fit`. If no shardings are given, arguments
are divided along their first dimension, as a batch, and all other inputs along their largest dimension that divides
(fully sharded data parallelism). A large slice is tried twice: divided along one axis of all chips, and as replicas
that each hold the whole model (hybrid sharding), which gather over fewer chips and take more memory.

Patterns of shardings name the axes of a mesh. A slice is then tried with every mesh that gives each of its dimensions
to one of these axes, so that the collectives of an axis run along whole rings of chips.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax.sharding import PartitionSpec

from ..base.units import duration, size
from ..capture.jit import Jit
from ..capture.layouts import (
    MeshLike,
    Rule,
    Shardings,
    axes_of,
    check_target,
    devices_of,
    mesh_of,
    sizes_of,
)
from ..capture.tpu import CompileError, libtpu_folder
from .fit.report import Fit, fit


@dataclass(frozen=True)
class Choice:
    """A step on some chips.

    Attributes:
        target: the chips.
        mesh: the sizes of the axes of their mesh.
        report: the report of `fit`; None if the compiler rejected the program.
        error: why it did.
    """

    target: str
    mesh: Mapping[str, int]
    report: Fit | None
    error: str = ""

    @property
    def fits(self) -> bool:
        """Whether the memory is enough."""
        return self.report is not None and self.report.fits

    @property
    def verdict(self) -> str:
        """Whether it fits, in a word: "yes", "no", or "rejected" by the compiler."""
        return "rejected" if self.report is None else "yes" if self.fits else "no"

    @property
    def bound(self) -> str:
        """What a step waits for most; "" if it does not fit or no rates are known."""
        time = self.report.time if self.report is not None else None
        return time.bound if time is not None and self.fits else ""

    @property
    def seconds(self) -> float | None:
        """The estimated seconds of a step; None if it does not fit or no rates are known."""
        time = self.report.time if self.report is not None else None
        return time.total if time is not None and self.fits else None

    @property
    def chip_seconds(self) -> float | None:
        """The estimated seconds of a step, times the number of devices."""
        return (
            None
            if self.seconds is None or self.report is None
            else self.seconds * self.report.devices
        )

    def _cells(self) -> tuple[str, ...]:
        """Its row in the table of a plan."""
        report, mesh = self.report, " ".join(f"{axis}={n}" for axis, n in self.mesh.items())
        if report is None:
            return self.target, mesh, self.verdict, "", "", "", "", ""
        time = chips = ""
        if self.seconds is not None and self.chip_seconds is not None:
            time = f"~{duration(self.seconds * 1e9)}"
            chips = f"~{duration(self.chip_seconds * 1e9)}"
        room = "" if report.hbm is None else size(report.hbm)
        return (
            self.target,
            mesh,
            self.verdict,
            size(report.used),
            room,
            time,
            self.bound,
            chips,
        )


_HEADINGS = (
    "chips",
    "mesh",
    "fits",
    "memory per chip",
    "of",
    "step (estimate)",
    "bound by",
    "chips x time",
)


@dataclass(frozen=True, repr=False)
class Plan:
    """The choices, in the order of the chips that were asked for. It prints as a table.

    A notebook with the extension shows for each choice the memory by kind, the time by unit, and what to do.
    """

    choices: tuple[Choice, ...]

    @property
    def best(self) -> Choice | None:
        """The choice that fits and takes the fewest chip-seconds; None if none fits."""
        possible = [c for c in self.choices if c.chip_seconds is not None]
        return min(possible, key=lambda c: c.chip_seconds or 0.0, default=None)

    def __str__(self) -> str:
        rows = [_HEADINGS, *(choice._cells() for choice in self.choices)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        lines += [f"{choice.target}: {choice.error}" for choice in self.choices if choice.error]
        return "\n".join(lines)

    __repr__ = __str__


def plan(
    step: Jit,
    *args: object,
    chips: Sequence[str],
    meshes: str | Mapping[str, MeshLike | Sequence[MeshLike]] = "auto",
    shardings: Shardings | None = None,
    **kwargs: object,
) -> Plan:
    """Compile a training step for several targets, and report for each whether it fits and how long it takes.

    Nothing runs, and the tensors may be on the meta device. Each target is compiled in turn, which takes as long as
    `step.lower(...).compile()`.

    Args:
        step: made by `jaxtorch.jit`.
        args, kwargs: as in a call of it.
        chips: the targets: "v5e:4x4", "v5p:4x4x4"; or one.
        meshes: a mesh for each target, or several. "auto": one axis, "data", of all its devices; for 16 devices and
            more also `{"replica": ..., "data": ...}`, with replicas along the first dimension of the slice. If
            `shardings` has patterns, the meshes have the axes that these name: "v5e:4x4" with "data" and "model" is
            tried as 16 x 1, 4 x 4 and 1 x 16.
        shardings: as in `step.lower`. By default arguments are divided along their first dimension, by the axes
            "replica" and "data", and everything else along its largest, if it divides by the axis "data", or by the
            only axis of the mesh.

    Returns:
        A `Plan`: `.choices` in the order of `chips` and of their meshes, and `.best`.

    Raises:
        ValueError: a target is unknown, or a mesh or sharding does not fit it. A mesh of "auto" that does not fit is
            a choice that is rejected, if another one fits.
        TypeError: `step` is not made by `jaxtorch.jit`.
        CompileError: the compiler is not installed.

    Example:
        >>> import torch, jaxtorch
        >>> step = jaxtorch.jit(lambda x: x * 2)
        >>> plan = jaxtorch.plan(step, torch.ones(8), chips=["v5e:1x1", "v5e:2x2"])  # doctest: +SKIP
        >>> plan.best.target                                                         # doctest: +SKIP
        'v5e:1x1'
    """
    if not hasattr(step, "lower"):
        raise TypeError(
            f"plan takes a step made by `jaxtorch.jit`, not {type(step).__name__}: write "
            '`jaxtorch.plan(jaxtorch.jit(step), x, chips=["v5e:1x1"])`'
        )
    chips = [chips] if isinstance(chips, str) else chips
    if not isinstance(meshes, Mapping) and meshes != "auto":
        raise ValueError(f"meshes is 'auto' or has a mesh for each target, not {meshes!r}")
    if not isinstance(meshes, str) and (missing := [name for name in chips if name not in meshes]):
        raise ValueError(f"meshes has no mesh for {', '.join(missing)}")
    # All are checked first, because each takes long to compile.
    for target in chips:
        check_target(target)
    pairs = [
        (target, dict(mesh_of(mesh, target).shape))
        for target in chips
        for mesh in (
            _automatic(target, shardings) if isinstance(meshes, str) else _several(meshes[target])
        )
    ]
    all_rules = [divided(mesh) if shardings is None else shardings for _, mesh in pairs]
    if chips:
        libtpu_folder()
    choices = []
    misfits: list[ValueError] = []
    for (target, mesh), rules in zip(pairs, all_rules, strict=True):
        try:
            lowered = step.lower(*args, target=target, mesh=mesh, shardings=rules, **kwargs)
            choices.append(Choice(target, mesh, fit(lowered)))
        except CompileError as error:
            choices.append(Choice(target, mesh, None, str(error)))
        except ValueError as error:
            if not isinstance(meshes, str):
                raise
            misfits.append(error)
            choices.append(Choice(target, mesh, None, str(error)))
    if misfits and len(misfits) == len(choices):
        raise misfits[0]
    return Plan(tuple(choices))


_LARGE = 16  # devices of a slice that is tried with replicas, too


def _automatic(target: str, shardings: Shardings | None) -> list[dict[str, int]]:
    """The meshes that are tried for a target."""
    count = devices_of(target)
    if isinstance(shardings, Mapping) and (axes := _axes(shardings)):
        return _dealt(target, axes)
    replicas = sizes_of(target)[0]
    meshes = [{"data": count}]
    if count >= _LARGE and 1 < replicas < count and count % replicas == 0:
        meshes.append({"replica": replicas, "data": count // replicas})
    return meshes


def _axes(shardings: Mapping[str, PartitionSpec]) -> list[str]:
    """The names of axes in shardings, in the order in which they are first named."""
    specs = [spec for spec in shardings.values() if isinstance(spec, PartitionSpec)]
    return list(dict.fromkeys(axis for spec in specs for axis in axes_of(spec)))


def _dealt(target: str, axes: Sequence[str]) -> list[dict[str, int]]:
    """The meshes in which each dimension of a slice belongs to one axis.

    Example:
        >>> _dealt("v5e:2x4", ["data", "model"])
        [{'data': 8, 'model': 1}, {'data': 2, 'model': 4}, {'data': 4, 'model': 2}, {'data': 1, 'model': 8}]
    """
    dimensions = sizes_of(target)
    dimensions.append(devices_of(target) // math.prod(dimensions))  # devices of a chip
    meshes: list[dict[str, int]] = []
    for owners in itertools.product(axes, repeat=len(dimensions)):
        mesh = dict.fromkeys(axes, 1)
        for axis, count in zip(owners, dimensions, strict=True):
            mesh[axis] *= count
        if mesh not in meshes:
            meshes.append(mesh)
    return meshes


def _several(meshes: MeshLike | Sequence[MeshLike]) -> Sequence[MeshLike]:
    return meshes if isinstance(meshes, list | tuple) else [meshes]  # type: ignore[list-item]  # one mesh


def divided(mesh: Mapping[str, int]) -> Rule:
    """Shardings that divide everything along one axis of a mesh; `plan` describes them.

    Raises:
        ValueError: the mesh has several axes, none of them "data".

    Example:
        >>> rule = divided({"data": 4})
        >>> rule("x", (8, 3)), rule("model.0.weight", (3, 8)), rule("model.0.bias", (3,))
        (P('data',), P(None, 'data'), P())
    """
    axes = [name for name, count in mesh.items() if count > 1]
    if len(axes) > 1 and "data" not in axes:
        raise ValueError(
            f"plan divides everything along one axis of a mesh, and {dict(mesh)} has several: name one of them 'data', "
            "or pass shardings=, such as {'x': P('" + axes[0] + "')}"
        )
    axis = "data" if "data" in axes or not axes else axes[0]
    count = mesh.get(axis, 1)
    batch = tuple(name for name in ("replica", "data") if name in axes)
    examples = math.prod(mesh[name] for name in batch)

    def rule(name: str, shape: tuple[int, ...]) -> PartitionSpec:
        # The name of what belongs to a module or an optimizer has parts.
        is_argument = "." not in name
        if is_argument and len(batch) > 1 and shape and shape[0] and shape[0] % examples == 0:
            return PartitionSpec(batch)
        sizes = [n if n and n % count == 0 else 0 for n in shape]
        if not any(sizes) or count == 1:
            return PartitionSpec()
        best = 0 if is_argument and sizes[0] else sizes.index(max(sizes))
        return PartitionSpec(*(None,) * best, axis)

    return rule
