"""The run-time operands of a program: their order, how views read them, and caches of operands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import Sharding

from ..lowerings.promote import convert
from ..lowerings.separate import separate
from ..programs.rng import key_aval
from ..storage import in_flight, placement
from ..storage.buffer import Buffer, Spec
from ..storage.dtypes import to_numpy
from ..storage.layout import Starts, ViewPlan, plan
from ..storage.transfer import put
from .call import first_positions
from .numbers import (
    KINDS,
    KindedNumber,
    Scalar,
    check_bounds,
    equals_only_itself,
    number_operands,
)
from .schema import Arguments
from .template import Template

Tensor = torch.Tensor
Operand = jax.Array | np.ndarray
# A view with more different offsets than these counts as one with a varying offset.
MOST_CONSTANT = 8
VECTORS = {
    "f": "floats",
    "i": "ints",
    "c": "complexes",
}  # names of the numbers of a kind, for views
Offsets = tuple[int | torch.SymInt, ...]


def aval_of(spec: Spec) -> jax.ShapeDtypeStruct:
    """Shape, dtype and sharding of a buffer's array."""
    return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=spec.placement)


class Inputs(NamedTuple):
    """The operands of one run, as the lowering needs them.

    Attributes:
        bases: the array of each tensor's buffer. A write replaces that of the buffer's first tensor.
        arrays: the values of each tensor, before any write.
        starts: of each tensor's view; None for a tensor that is its buffer's array.
        numbers: the numbers of each kind.
    """

    bases: list[jax.Array]
    arrays: list[jax.Array]
    starts: list[Starts | None]
    numbers: dict[str, jax.Array]


class Operands:
    """What a program takes, in this order: random key or blocks of random bits, buffers, starts of the views, numbers.

    Attributes:
        leading: the avals of the key or the blocks; empty if the lowering draws no random numbers.
        specs: the spec of each tensor's buffer.
        sharding: of everything except the buffers. On a mesh, everything is replicated.
        moved: indices in `unique` of the buffers on one device, if the program runs on a mesh.
        unique: the first tensor of each distinct buffer. If the program writes, each buffer is one operand, because a
            donated array must not be passed twice; otherwise each tensor has an operand.
        operand_of: for each tensor, the index of its buffer in `unique`.
        written: indices of the tensors that the program writes.
        plans: how each tensor views its buffer; None for a tensor that is its buffer's array.
        views: the index and the plan of each tensor whose plan takes starts. (A plan without starts covers its buffer.)
        number_kinds: the kinds of numbers, sorted; there is one operand for each.
        kinds: the kind of each number.
        number_count: how many numbers there are.
        known_starts: the starts operand by offsets, for calls that had these.
        known_numbers: the operands of numbers by their values, for calls that had these.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        buffers: Sequence[Buffer],
        numbers: Sequence[KindedNumber],
        written: Sequence[int],
        random: bool,
        gather: bool,
        operator: str = "",
    ):
        self.specs = [b.spec for b in buffers]
        where = placement.common((spec.placement for spec in self.specs), operator)
        self.sharding: Sharding = where or placement.current()
        key = key_aval(self.sharding)
        self.leading = [key] if random else []
        first = first_positions(buffers) if written else list(range(len(buffers)))
        self.unique = sorted(set(first))
        self.on_mesh = placement.on_mesh(self.sharding)
        self.moved = [
            i
            for i, tensor in enumerate(self.unique)
            if self.on_mesh and not placement.on_mesh(self.specs[tensor].placement)
        ]
        position = {tensor: i for i, tensor in enumerate(self.unique)}
        self.operand_of = [position[i] for i in first]
        self._first = first  # for each tensor, the first one of its buffer (itself, if the program writes nothing)
        self.written = list(written)
        self.plans: list[ViewPlan | None] = []
        for t, spec in zip(tensors, self.specs, strict=True):
            p = plan(spec, t.dtype, tuple(t.shape), t.stride())
            self.plans.append(p.fallback if p is not None and gather else p)
        self.views = [(i, p) for i, p in enumerate(self.plans) if p is not None and p.count]
        self.kinds = [kind for kind, _ in numbers]
        self.number_count = len(numbers)
        self._number_counts = Counter(self.kinds)
        self.number_kinds = sorted(self._number_counts)
        self._sizes = [tuple(t.shape) for t in tensors]
        self._dtypes = [to_numpy(t.dtype) for t in tensors]
        self.known_starts: dict[Offsets, Operand] = {}
        self.known_numbers: dict[tuple[Scalar, ...], tuple[Operand, ...]] = {}

    def shares(self) -> bool:
        """Whether a buffer that the program writes belongs to two of its tensors."""
        written = {self.operand_of[i] for i in self.written}
        return any(self.operand_of.count(operand) > 1 for operand in written)

    # -- inside the program ----------------------------------------------------------------------------------------

    def avals(self) -> list[jax.ShapeDtypeStruct]:
        """Shape, dtype and sharding of each operand."""
        avals = list(self.leading)
        for i, tensor in enumerate(self.unique):
            aval = aval_of(self.specs[tensor])
            avals.append(aval.update(sharding=self.sharding) if i in self.moved else aval)
        if self.views:
            count = sum(p.count for _, p in self.views)
            avals.append(jax.ShapeDtypeStruct((count,), np.int32))
        for kind in self.number_kinds:
            avals.append(jax.ShapeDtypeStruct((self._number_counts[kind],), KINDS[kind]))
        return avals

    def names(self, template: Template) -> list[str]:
        """The name of each operand after `leading`, for views."""
        names = [template.tensor_names[i] for i in self.unique]
        names += ["view_starts"] if self.views else []
        for kind in self.number_kinds:
            numbers = template.number_names[kind]
            names.append(numbers[0] if len(numbers) == 1 else VECTORS[kind])
        return names

    def donated(self) -> tuple[int, ...]:
        """The operands whose memory the program may reuse: the buffers that it writes."""
        return tuple(i + len(self.leading) for i in self._written_operands())

    def targets(self) -> list[int]:
        """The first tensor of each buffer that the program writes."""
        return [self.operand_of.index(i) for i in self._written_operands()]

    def _written_operands(self) -> list[int]:
        return sorted({self.operand_of[i] for i in self.written})

    def read(self, operands: Sequence[Any]) -> Inputs:
        """Take the operands after `leading` apart and read the views."""
        rest = iter(operands)
        buffers = [next(rest) for _ in self.unique]
        all_starts: Starts = next(rest) if self.views else ()
        numbers = {kind: next(rest) for kind in self.number_kinds}
        bases = [buffers[i] for i in self.operand_of]
        starts: list[Starts | None] = []
        arrays = []
        position = 0
        for base, p in zip(bases, self.plans, strict=True):
            if p is None:
                starts.append(None)
                arrays.append(base)
                continue
            of_view = all_starts[position : position + p.count]
            position += p.count
            starts.append(of_view)
            arrays.append(p.read(base, of_view))
        return Inputs(bases, arrays, starts, numbers)

    def write(
        self, inputs: Inputs, values: Iterable[Any], separately: bool = False
    ) -> list[jax.Array]:
        """The array of each written buffer after `values` are written, one for each index in `written`.

        Args:
            separately: a value may depend on other elements of the buffer that it is written to.
        """
        for i, value in zip(self.written, values, strict=True):
            self.write_one(inputs, i, value, separately)
        return self.written_arrays(inputs)

    def read_one(self, inputs: Inputs, i: int) -> jax.Array:
        """The values of tensor `i` after the writes so far."""
        base, p, starts = inputs.bases[self._first[i]], self.plans[i], inputs.starts[i]
        return base if p is None or starts is None else p.read(base, starts)

    def write_one(self, inputs: Inputs, i: int, value: Any, separately: bool) -> None:
        """Write a value to tensor `i`; arguments as for `write`."""
        value = jnp.broadcast_to(convert(value, self._dtypes[i]), self._sizes[i])
        first, p, starts = self._first[i], self.plans[i], inputs.starts[i]
        if p is not None and starts is not None:
            if separately and p.count:
                value = separate(value)
            value = p.write(inputs.bases[first], value, starts)
        inputs.bases[first] = value

    def written_arrays(self, inputs: Inputs) -> list[jax.Array]:
        """The array of each buffer that the program writes, after the writes so far."""
        return [inputs.bases[i] for i in self.targets()]

    def keep_shardings(self, written: Sequence[jax.Array]) -> list[jax.Array]:
        """The written buffers after a run, each with the sharding that it had.

        XLA chooses the sharding of a buffer that was moved to the mesh, such as one that torch itself made by
        `torch.empty` for a result that it writes next.
        """
        avals = self.avals()[len(self.leading) :]
        return [
            array if i in self.moved else jax.lax.with_sharding_constraint(array, avals[i].sharding)
            for array, i in zip(written, self._written_operands(), strict=True)
        ]

    def shardings(self) -> dict[tuple[int, ...], Sharding]:
        """The shardings of the buffers on a mesh, by shape. A result of another shape is replicated if it is new."""
        on_mesh = [spec for spec in self.specs if placement.on_mesh(spec.placement)]
        return {spec.shape: spec.placement for spec in reversed(on_mesh)}

    # -- at a call -------------------------------------------------------------------------------------------------

    def move(self, operands: list[Operand]) -> None:
        """Before a launch: replicate the buffers that are on one device over the mesh.

        `operands` begins with the buffers.
        """
        if self.on_mesh:
            in_flight.before_launch(self.sharding)
        for i in self.moved:
            operands[i] = placement.moved(operands[i], self.sharding)

    def add(
        self,
        operands: list[Operand],
        tensors: Sequence[Tensor],
        numbers: Sequence[KindedNumber],
        template: Template,
    ) -> bool:
        """Append the starts and the numbers of a call; False if a plan does not apply to an offset."""
        if self.views:
            starts = self.starts(self.offsets(tensors))
            if starts is None:
                return False
            operands.append(starts)
        if numbers:
            if template.bounds:
                check_bounds(template.bounds, numbers)
            operands += number_operands(self.number_kinds, numbers, self.sharding)
        return True

    def offsets(self, tensors: Sequence[Tensor]) -> Offsets:
        """The storage offsets of the call's views that take starts."""
        return tuple([tensors[i].storage_offset() for i, _ in self.views])

    def new_starts(self, offsets: Offsets) -> np.ndarray | None:
        """The starts of the views at these offsets (int32), or None if a plan does not apply to an offset."""
        starts: tuple[int, ...] = ()
        for (_, p), offset in zip(self.views, offsets, strict=True):
            of_view = p.starts(int(offset))
            if of_view is None:
                return None
            starts += of_view
        return np.array(starts, np.int32)

    def applies(self, offsets: Offsets) -> bool:
        """Whether the plans apply to these offsets."""
        return offsets in self.known_starts or self.starts(offsets) is not None

    @property
    def varies(self) -> bool:
        """Whether the views had many different offsets, as `x[i]` in a loop."""
        return len(self.known_starts) > MOST_CONSTANT

    def starts(self, offsets: Offsets) -> Operand | None:
        """As `new_starts`, and cached.

        The result is a NumPy array when offsets first occur, and a device array from then on. A transfer takes six
        times as long as XLA takes to read a NumPy argument, so it pays only for offsets that occur again.
        """
        starts = self.known_starts.get(offsets)
        if starts is None:
            starts = self.new_starts(offsets)
            if starts is None:
                return None
            if len(self.known_starts) >= 4096:
                self.known_starts.clear()
            self.known_starts[offsets] = starts
            if not self.written:
                return starts
        # XLA reads a NumPy argument in Python, where Ctrl-C could come between a donation and its result.
        if type(starts) is np.ndarray:
            starts = self.known_starts[offsets] = put(starts, self.sharding)[0]
        return starts

    def remember(self, numbers: Sequence[KindedNumber], operands: Sequence[Operand]) -> None:
        """Cache the operands of a call's numbers, which are the last ones, unless other numbers may equal them.

        The cache is small, because a number that changes at every step adds an operand at every step.
        """
        if all(kind == "i" or equals_only_itself(number) for kind, number in numbers):
            if len(self.known_numbers) >= 16:
                self.known_numbers.clear()
            count = len(self.number_kinds)
            self.known_numbers[tuple([number for _, number in numbers])] = tuple(operands[-count:])

    def add_known(self, operands: list[Operand], args: Arguments) -> bool:
        """Append the starts and the last argument, a number, from the caches; False if one is not cached."""
        if self.views:
            starts = self.known_starts.get(tuple([args[i].storage_offset() for i, _ in self.views]))
            if starts is None or type(starts) is np.ndarray:  # `starts` moves it to the device
                return False
            operands.append(starts)
        if self.number_kinds:
            numbers = self.known_numbers.get((args[-1],))
            if numbers is None:
                return False
            operands += numbers
        return True
