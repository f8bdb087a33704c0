"""From one described call to one XLA program.

An `Operation` is an operator with its lowering. It turns a call into a key (options, dtype and geometry of each
tensor, static arguments), and the key into a `Program`; a Program is a JAX function over physical arrays

    (random key, buffers..., starts of the views, numbers) -> (results and rewritten buffers..., new random key)

compiled once. Reading views, casting, the operator itself and writing views back all happen inside it. Inside a trace
the same function is inlined, uncompiled, so everything that works eagerly can be captured.

What a Program returns is fixed when it is built: torch's Meta kernel determines sizes, strides and dtypes of
the results and raises torch's own errors for bad input; the lowering must agree on sizes.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..lowerings.promote import Number, convert
from ..lowerings.registry import Lowering
from ..programs import program_cache
from ..programs.compiling import finish, phase
from ..programs.stats import ProgramRecord
from ..storage import placement
from ..storage.buffer import Buffer, Spec, spec_of
from ..storage.dtypes import to_numpy, to_torch
from ..storage.layout import Plan, contiguous_strides, memory_order, plan
from ..storage.transfer import put
from .call import NumberSlot, Slot, first_positions
from .numbers import KINDS, limits
from .results import Fresh, Structure, Written, flatten, single

build_lock = threading.RLock()


class Program:
    """A compiled call. See the module's text.

    Attributes:
        nbytes: what it takes, about.
        round: when it was last set aside (`programs/program_cache.py`).
    """

    def __init__(
        self,
        name: str,
        lowering: Lowering,
        template: list[Any],
        tensors: list[torch.Tensor],
        buffers: list[Buffer],
        number_kinds: list[str],
        metas: Any,
        written: list[int],
        precision: str | None,
        gather: bool,
        structure: Structure,
    ):
        self.name = name
        self.lowering = lowering
        self.template = template
        self.metas = metas
        self.written = written  # indices of the tensors written, one for each leaf of the result
        self.precision = precision
        self.structure = structure
        self.specs = [b.spec for b in buffers]
        # Where everything but the buffers goes: numbers, starts, the random key.
        self.where = self.specs[0].placement if self.specs else placement.current()
        # One operand for each distinct buffer: a donated array must not be passed twice.
        first = first_positions(buffers) if written else list(range(len(buffers)))
        self.unique = sorted(set(first))
        place = {i: position for position, i in enumerate(self.unique)}
        self.operand_of = [place[i] for i in first]
        self.plans: list[Plan | None] = []
        for t, spec in zip(tensors, self.specs, strict=True):
            p = plan(spec, t.dtype, tuple(t.shape), t.stride())
            self.plans.append(p.fallback if p is not None and gather else p)
        # A plan that takes no start covers its whole buffer, at offset 0.
        self.views = [(i, p) for i, p in enumerate(self.plans) if p is not None and p.count]
        self._starts: dict[tuple[int, ...], Any] = {}
        self._numbers: dict[Any, Any] = {}  # the operand of each number met
        self.number_kinds = sorted(set(number_kinds))
        self.leaves: list[Fresh | None] = []
        self.new_specs: list[Spec] = []
        self.limits: set[tuple[int, float, float, str]] = set()
        self.single = False
        self.by_hot_path = True  # nothing must run before it
        # The hot path may call it: compiled, one contiguous result, nothing written, ...
        self.quick = False
        self.plain = False  # ... no starts and no numbers
        self.only: Any = None
        self.writes = Written(name)
        self.nbytes, self.round = program_cache.TRACED_BYTES, 0  # of `programs/program_cache.py`
        self.targets: list[int] = []
        self._call: Callable[..., Any] | None = None
        self.record: ProgramRecord | None = None
        self.sizes = [tuple(t.shape) for t in tensors]
        self.dtypes = [t.dtype for t in tensors]
        self._trace_outputs()

    # -- the JAX function ---------------------------------------------------------------------------------------

    def _inputs(self, operands: tuple[Any, ...]) -> tuple[Any, list[Any], list[Any], Any, dict]:
        rest = list(operands)
        key = rest.pop(0) if self.lowering.random else None
        bases = [rest[i] for i in self.operand_of]
        rest = rest[len(self.unique) :]
        starts: Any = rest.pop(0) if self.views else None
        numbers = {kind: rest.pop(0) for kind in self.number_kinds}
        slices: list[Any] = []
        position = 0
        arrays = []
        for base, p in zip(bases, self.plans, strict=True):
            if p is None:
                slices.append(None)
                arrays.append(base)
            else:
                own = starts[position : position + p.count] if p.count else ()
                position += p.count
                slices.append(own)
                arrays.append(p.read(base, own))
        return key, bases, arrays, slices, numbers

    def function(self, *operands: Any) -> tuple[Any, ...]:
        """The whole call over physical arrays."""
        key, bases, arrays, slices, numbers = self._inputs(operands)
        arguments = self._fill(self.template, arrays, numbers)
        new_key = None
        if self.lowering.random:
            new_key, own_key = jax.random.split(jax.random.wrap_key_data(key))
            new_key = jax.random.key_data(new_key)
            result = self._lowered(own_key, *arguments)
        else:
            result = self._lowered(*arguments)
        values = list(result) if isinstance(result, list | tuple) else [result]
        # Fresh results come first, then the new values of what is written, as the schema lists them.
        writes = []
        if self.written:
            leaves = flatten(values)
            split = len(leaves) - len(self.written)
            values, writes = leaves[:split], leaves[split:]
        outputs = self._fresh(values) + self._write(writes, bases, slices)
        return tuple(outputs) if new_key is None else (*outputs, new_key)

    def _fill(self, template: Any, arrays: list[Any], numbers: dict[str, Any]) -> Any:
        """The template with its slots replaced."""
        if isinstance(template, Slot):
            return arrays[template.index]
        if isinstance(template, list):
            return [self._fill(item, arrays, numbers) for item in template]
        if not isinstance(template, NumberSlot):
            return template
        slot = template

        def note(dtype: np.dtype) -> None:
            limit = limits(dtype)
            if limit is not None:
                self.limits.add((slot.position, *limit))

        value = numbers[slot.kind][slot.index]
        return Number(value, slot.kind, slot.dtype, note if slot.scalar else None)

    def _lowered(self, *arguments: Any) -> Any:
        if self.precision is None:
            return self.lowering.function(*arguments)
        with jax.default_matmul_precision(self.precision):
            return self.lowering.function(*arguments)

    def _fresh(self, result: Any) -> list[Any]:
        """Results in memory order, and the record of what they are (`leaves`)."""
        leaves: list[Fresh | None] = []
        outputs = []
        metas = flatten(self.metas)
        for i, value in enumerate(flatten(result)):
            if value is None:
                leaves.append(None)
                continue
            value = jnp.asarray(value)
            meta = metas[i] if self.metas is not None and i < len(metas) else None
            size: Any = tuple(value.shape)
            stride: Any = None
            if isinstance(meta, torch.Tensor):
                if tuple(meta.shape) != size:
                    raise RuntimeError(
                        f"the lowering of aten::{self.name} returned a result of shape {size}, but torch expects "
                        f"{tuple(meta.shape)}. This is a bug in jaxtorch: please report it. "
                        "Calling `.cpu()` on the inputs works around it."
                    )
                dtype = meta.dtype
                if meta.stride() != contiguous_strides(size):
                    stride = meta.stride()
            else:
                dtype = to_torch(value.dtype)
            value = convert(value, to_numpy(dtype))
            order = memory_order(size, stride) if stride is not None else None
            if order is not None:
                value = value.transpose(order)
            else:
                stride = None
            leaves.append(Fresh(size, dtype, stride, None, self.name))
            outputs.append(value)
        if not self.leaves:
            self.leaves = leaves
        return outputs

    def _write(self, values: list[Any], bases: list[Any], slices: list[Any]) -> list[Any]:
        """The buffers after the writes, one for each distinct buffer written."""
        current = dict(enumerate(bases))
        for index, value in zip(self.written, values, strict=True):
            operand_index = self.operand_of[index]
            owner = self.operand_of.index(operand_index)
            base = current[owner]
            value = convert(value, to_numpy(self.dtypes[index]))
            p = self.plans[index]
            if p is None:
                current[owner] = jnp.broadcast_to(value, self.sizes[index])
            else:
                current[owner] = p.write(
                    base, jnp.broadcast_to(value, self.sizes[index]), slices[index]
                )
        return [current[self.operand_of.index(o)] for o in self._written_operands()]

    def _written_operands(self) -> list[int]:
        return sorted({self.operand_of[i] for i in self.written})

    # -- building -----------------------------------------------------------------------------------------------

    def _avals(self) -> list[Any]:
        avals = []
        if self.lowering.random:
            avals.append(jax.ShapeDtypeStruct((2,), np.uint32, sharding=self.where))
        for i in self.unique:
            spec = self.specs[i]
            avals.append(jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=spec.placement))
        if self.views:
            count = sum(p.count for _, p in self.views)
            avals.append(jax.ShapeDtypeStruct((count,), np.int32))
        for kind in self.number_kinds:
            avals.append(jax.ShapeDtypeStruct((self._number_count(kind),), KINDS[kind]))
        return avals

    def _number_count(self, kind: str) -> int:
        def count(node: Any) -> int:
            if isinstance(node, list):
                return sum(map(count, node))
            return int(isinstance(node, NumberSlot) and node.kind == kind)

        return count(self.template)

    def _trace_outputs(self) -> None:
        """Trace once: finds `leaves`, and every error of the lowering, before anything is cached."""
        started = time.perf_counter()
        jitted = jax.jit(
            _named(self.function, self.name),
            donate_argnums=tuple(i + int(self.lowering.random) for i in self._written_operands()),
            # Without operands nothing else would say where a factory's result goes.
            **({} if self.specs else {"out_shardings": self.where}),
        )
        with phase(self.name), jax.enable_x64(True):
            self._traced = jitted.trace(*self._avals())
        self.trace_seconds = time.perf_counter() - started
        outs = list(self._traced.out_info)
        if self.lowering.random:
            outs.pop()
        specs = [spec_of(np.dtype(o.dtype), tuple(o.shape), self.where) for o in outs]
        self.targets = [self.operand_of.index(o) for o in self._written_operands()]
        iterator = iter(specs)
        for leaf in self.leaves:
            if leaf is not None:
                leaf.spec = next(iterator)
        self.new_specs = list(iterator)
        self.single = (
            len(self.leaves) == 1
            and self.leaves[0] is not None
            and self.leaves[0].stride is None
            and self.structure is single
        )
        if self.single:
            self.only = self.leaves[0]

    def starts_for(self, tensors: list[torch.Tensor], traced: bool) -> Any:
        """The operand with the starts of the call's views (int32), or None where the plans do not hold for an offset.

        A NumPy array the first time some offsets occur, a device array from then on: a transfer costs six times what
        XLA takes to read a NumPy argument, and pays only for offsets that come again.
        """
        offsets: Any = tuple([tensors[i].storage_offset() for i, _ in self.views])
        found = None if traced else self._starts.get(offsets)
        if found is None:
            starts: tuple[int, ...] = ()
            for (_, p), offset in zip(self.views, offsets, strict=True):
                own = p.starts(offset)
                if own is None:
                    return None
                starts += own
            if len(self._starts) >= 4096:
                self._starts.clear()
            found = np.array(starts, np.int32)
            if not traced:
                self._starts[offsets] = found
                if not self.written:
                    return found
        # XLA reads a NumPy argument in Python, where Ctrl-C could come between a donation and its result.
        if type(found) is np.ndarray and not traced:
            found = self._starts[offsets] = put(found, self.where)[0]
        return found

    def remember(self, number: Any, operand: Any) -> None:
        """Keep the operand of a call's only number. Not of zeros and NaNs: 0.0 == -0.0 and NaN != NaN.

        Few, because a number that changes at every step would leave an operand behind at each.
        """
        if number and number == number:
            if len(self._numbers) >= 16:
                self._numbers.clear()
            self._numbers[number] = operand

    def complete(self, operands: list[Any], args: tuple[Any, ...]) -> bool:
        """Add the starts and the number of a quick call; False where this program meets one for the first time."""
        if self.views:
            starts = self._starts.get(tuple([args[i].storage_offset() for i, _ in self.views]))
            if (
                starts is None or type(starts) is np.ndarray
            ):  # for `starts_for` to put on the device
                return False
            operands.append(starts)
        if self.number_kinds:
            number = self._numbers.get(args[-1])
            if number is None:
                return False
            operands.append(number)
        return True

    def compiled(self) -> Callable[..., Any]:
        """The executable, compiled at the first call that is not inside a trace."""
        with build_lock:
            if self._call is None:
                self._call, self.record = finish(
                    self._traced, self.name, self.trace_seconds, self._avals()
                )
                self._traced = None  # type: ignore[assignment]  # what views need of it hangs on the call
                program_cache.count_executable(self, self._call.program.executable)  # type: ignore[attr-defined]  # `finish` put it there
                _compiled.add(self)
                if counting:
                    self._count(True)
                self.quick = self.single and not self.written and self.by_hot_path
                self.plain = self.quick and not (self.views or self.number_kinds)
            return self._call

    def _count(self, on: bool) -> None:
        """Let the program count its calls. Not one that writes: nothing may come between its run and its results."""
        if self.written or self._call is None:
            return
        call, record = getattr(self._call, "uncounted", self._call), self.record
        assert record is not None
        if not on:
            self._call = call
            return

        def counted(*operands: Any) -> Any:
            record.calls += 1
            return call(*operands)

        counted.uncounted = call  # type: ignore[attr-defined]  # a function takes any
        self._call = counted


_compiled: weakref.WeakSet[Program] = weakref.WeakSet()
counting = False


def count_calls(on: bool) -> None:
    """Whether eager programs count how often they run."""
    global counting
    with build_lock:
        counting = on
        for program in list(_compiled):
            program._count(on)


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def program(*operands: Any) -> Any:
        return function(*operands)

    program.__name__ = program.__qualname__ = name
    return program
