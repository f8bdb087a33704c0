"""A window as one compiled program.

The program takes the inputs of the window and its numbers, and returns the results that are still referenced at its
end. The others are never stored. An input whose buffer was overwritten is donated. Offsets of views are constants, so
that XLA slices statically, unless they vary between windows.

The results that replace an input come first, in the order of the inputs (`programs/donation.py`). Otherwise new
gradients would get the memory of the parameters.

Each call is an inner function (`Program.inlined`), so a program that occurs twelve times is traced and lowered once.
XLA inlines them all.

The value of a filled tensor is an operand as well. XLA would simplify `zeros + x` to `x`, which changes the sign of a
zero: an optimizer's first step would differ from the same step in immediate execution.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from ..base.naming import name_inputs
from ..dispatch.numbers import KINDS, KindedNumber, Scalar, operand
from ..dispatch.operands import VECTORS, Offsets, aval_of
from ..programs import rng
from ..programs.compiling import building, finish
from ..programs.donation import is_worth_donating
from ..programs.stats import FunctionRecord, ProgramRecord, Site, TraceRecord
from ..storage.transfer import put
from .equal_numbers import EqualNumbers
from .node import Node, Recorded

FUNCTION = FunctionRecord("deferred calls", "deferred")


class Plan:
    """The program of a window for one set of results.

    Args:
        node: the window.
        live: the indices of the results that it returns.
        numbers: which of its numbers are equal.
        site: the line of the first call.

    Attributes:
        live: the same in the order in which the program returns them.
        input_count: how many inputs it takes: the first of the window.
        donated: the inputs whose memory it may reuse.
        execute, record: once it is compiled.
    """

    def __init__(
        self, node: Node, live: Sequence[int], numbers: EqualNumbers, site: Site | None = None
    ):
        self._site = site
        self.numbers = numbers
        self._returned = frozenset(live)
        self._path = node.path()
        self._avals = _inputs(self._path)
        self.input_count = len(self._avals)
        replaced = _replaced(self._path, self._returned)
        self.donated = frozenset(n for n in replaced.values() if is_worth_donating(self._avals[n]))
        self.live = sorted(live, key=lambda i: (replaced.get(i, self.input_count), i))
        kinds = numbers.kinds
        self._kinds = sorted(set(kinds))
        self._groups = [[g for g, k in enumerate(kinds) if k == kind] for kind in self._kinds]
        # For each call the value of its filled tensor, or None; then each value once.
        self._elements = [_element(call) for call in self._path]
        self._fills = {_value(e): e for e in self._elements if e is not None}
        self._varied = [call for call in self._path if call.offsets is None and _has_views(call)]
        self._sharding: Sharding = self._path[0].program.operands.sharding
        self._fill_operands: list[jax.Array]
        self.execute: Callable[..., Sequence[jax.Array]]
        self.record: ProgramRecord

    def returns(self, live: Iterable[int]) -> bool:
        """Whether it returns all of these results."""
        return self._returned.issuperset(live)

    def other_operands(
        self, values: Sequence[Scalar], offsets: Sequence[Offsets]
    ) -> list[jax.Array]:
        """What it takes beside the inputs: vectors of numbers, values of filled tensors, starts of varied views.

        Args:
            values: of its groups of equal numbers.
            offsets: of the window's views.
        """
        vectors = [
            operand(kind, tuple([values[g] for g in groups]), self._sharding)
            for kind, groups in zip(self._kinds, self._groups, strict=True)
        ]
        vectors += self._fill_operands
        if self._varied:
            starts = [_starts(call, offsets[call.view]) for call in self._varied]
            vectors.append(put(np.concatenate(starts), self._sharding)[0])
        return vectors

    def compile(self) -> None:
        """Trace and compile. It may run in any thread."""
        vectors = [
            jax.ShapeDtypeStruct((len(groups),), KINDS[kind], sharding=self._sharding)
            for kind, groups in zip(self._kinds, self._groups, strict=True)
        ]
        self._fill_operands = [put(e, self._sharding)[0] for e in self._fills.values()]
        vectors += [
            jax.ShapeDtypeStruct((), e.dtype, sharding=self._sharding) for e in self._fills.values()
        ]
        if self._varied:
            count = sum(map(_start_count, self._varied))
            vectors.append(jax.ShapeDtypeStruct((count,), np.int32, sharding=self._sharding))
        avals = [*self._avals, *vectors]
        name = f"{len(self._path)} deferred calls"
        started = time.perf_counter()

        def deferred_calls(*operands: jax.Array) -> list[jax.Array]:
            return self._function(operands)

        name_inputs(deferred_calls, self._input_names())
        with building(name), jax.enable_x64(True):
            jitted = jax.jit(
                deferred_calls, donate_argnums=tuple(sorted(self.donated)), keep_unused=True
            )
            traced = jitted.trace(*avals)
        seconds = time.perf_counter() - started
        self.execute, self.record = finish(
            traced, name, seconds, avals, TraceRecord(FUNCTION, self._site)
        )

    def _input_names(self) -> list[str]:
        """What views call the inputs: what the first call that takes one calls it, after the name of the operator."""
        names: dict[int, str] = {}
        for call in self._path:
            program = call.program
            operator = program.name.partition(".")[0]
            names_of_call = program.input_names(inner=True)
            for i, name in zip(call.operands, names_of_call, strict=False):
                if i < 0:
                    names.setdefault(~i, f"{operator}.{name}")
        vectors = [VECTORS[kind] for kind in self._kinds] + ["fill_value"] * len(self._fills)
        vectors += ["view_starts"] * bool(self._varied)
        return [*(names.get(i, "input") for i in range(self.input_count)), *vectors]

    def _function(self, operands: Sequence[jax.Array]) -> list[jax.Array]:
        inputs = operands[: self.input_count]
        others = list(operands[self.input_count :])
        varied = others.pop() if self._varied else None
        numbers: dict[int, jax.Array] = {}  # by group
        for groups, vector in zip(self._groups, others[: len(self._groups)], strict=True):
            numbers |= {g: vector[n] for n, g in enumerate(groups)}
        fills = dict(zip(self._fills, others[len(self._groups) :], strict=True))
        values: list[jax.Array] = []
        for call, element in zip(self._path, self._elements, strict=True):
            program = call.program
            arguments: list[jax.Array | np.ndarray] = [
                inputs[~i] if i < 0 else values[i] for i in call.operands
            ]
            if call.offsets is not None:
                arguments.append(_starts(call, call.offsets))
            elif varied is not None and _has_views(call):
                arguments.append(varied[: _start_count(call)])
                varied = varied[_start_count(call) :]
            kinds = program.operands.kinds
            taken = self.numbers.group_of[call.number : call.number + len(kinds)]
            for kind in program.operands.number_kinds:
                own = [numbers[g] for g, k in zip(taken, kinds, strict=True) if k == kind]
                arguments.append(jnp.stack(own))
            if element is None:
                values += program.inlined(*arguments)
            else:
                (spec,) = program.result_specs()
                values.append(jnp.broadcast_to(fills[_value(element)], spec.shape))
        return [values[i] for i in self.live]


def _element(call: Recorded) -> np.ndarray | None:
    """The value of each element of a filled tensor, without dimensions; None for other calls."""
    constant = call.program.constant
    return None if constant is None else constant.element()


def _value(element: np.ndarray) -> tuple[np.dtype, bytes]:
    return element.dtype, element.tobytes()


def _has_views(call: Recorded) -> bool:
    """Whether a call has views that take starts."""
    return bool(call.program.operands.views)


def _start_count(call: Recorded) -> int:
    return sum(plan.count for _, plan in call.program.operands.views)


def _starts(call: Recorded, offsets: Offsets) -> np.ndarray:
    starts = call.program.operands.new_starts(offsets)
    assert starts is not None, "the recorder checks that the plans apply"
    return starts


def _inputs(path: Sequence[Recorded]) -> list[jax.ShapeDtypeStruct]:
    """The aval of each input of a window."""
    found: dict[int, jax.ShapeDtypeStruct] = {}
    for call in path:
        inputs = call.program.operands
        avals = [aval_of(inputs.specs[i]) for i in inputs.unique]
        if call.program.lowering.random:
            key = rng.key_aval(inputs.sharding)
            avals.insert(0, key)
        for index, aval in zip(call.operands, avals, strict=True):
            if index < 0:
                found[~index] = aval
    return [found[n] for n in range(len(found))]


def written_from(path: Sequence[Recorded], keys: bool = True) -> dict[int, int]:
    """For each written result the index of the value that it replaces. `keys`: also for random keys."""
    before: dict[int, int] = {}
    for call in path:
        program = call.program
        fresh = sum(leaf is not None for leaf in program.results.leaves)
        for n, target in enumerate(program.targets):
            operand_index = program.operands.operand_of[target] + program.lowering.random
            before[call.first + fresh + n] = call.operands[operand_index]
        if keys and program.lowering.random:
            before[call.first + len(program.result_specs())] = call.operands[0]  # the next key
    return before


def _replaced(path: Sequence[Recorded], returned: frozenset[int]) -> dict[int, int]:
    """The input that each result replaces, for those that are returned and replace one."""
    before = written_from(path, keys=False)
    replaced = {}
    for result in returned:
        index = result
        while index in before:
            index = before[index]
        if index < 0:
            replaced[result] = ~index
    return replaced


class Plans:
    """What is known about the windows that end at one node.

    Attributes:
        sightings: how many there were.
        splits: how many plans were compiled because numbers that had been equal no longer were.
        compiled: the plans that can run.
        wanted: the results of a plan that is being compiled, or that failed to compile; None if there is none.
        misses: how many windows no compiled plan served, since the last one was compiled.
    """

    def __init__(self) -> None:
        self.sightings = self.splits = 0
        self.compiled: list[Plan] = []
        self.wanted: frozenset[int] | None = None
        self.misses = 0

    def find(
        self, live: Sequence[int], numbers: Sequence[KindedNumber]
    ) -> tuple[Plan, list[Scalar]] | None:
        """A plan that returns these results for these numbers, and the values of its groups of equal ones."""
        for plan in self.compiled:
            if plan.returns(live) and (values := plan.numbers.values(numbers)) is not None:
                return plan, values
        return None
