"""`jit`: torch code with effects compiled whole, such as a training step.

As `pure`, but what the code writes is written back: parameters, gradients, optimizer state, running statistics, the
random key. The old arrays are donated, so that a step needs no second copy of them. Python runs once a signature.

A step that makes lasting tensors (an optimizer's state in its first call) is traced once more at its second call, when
those exist; if it is the same program, the compiled one is kept.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ..dispatch import tracing
from ..dispatch.atomic import own, run_into
from ..dispatch.results import wrap_result
from ..interop.bridge import result_leaf
from ..interop.compiled import Compiled
from ..storage import placement
from ..storage.buffer import Buffer, buffer_of
from .captured import Captured, Output, capture
from .errors import CaptureError, explained
from .guards import Guards
from .numbers import Numbers
from .optimizers import Optimizers
from .pure import CacheInfo, name_of
from .signature import Arguments, key_of

Tensor = torch.Tensor


class Grad:
    """A leaf whose `.grad` the code set: whether there was one before, and what it was after."""

    def __init__(self, leaf: Tensor, before: Tensor | None):
        self.leaf = weakref.ref(leaf)
        self.had = before is not None
        self.before = None if before is None else id(before)
        self.after: Tensor | None = None


class Step:
    """One traced signature of a step."""

    def __init__(self, captured: Captured, slots: list[Any], guards: Guards, name: str):
        self.captured = captured
        self.slots = slots
        self.guards = guards
        self.name = name
        self.optimizers = Optimizers()
        self.grads: list[Grad] = []
        self.provisional = False  # made lasting tensors: to be traced again, now that they exist
        self.kept: list[Buffer] = []  # made by the code, held by somebody: written at each run
        self.compiled: Any = None

    def prepare(self) -> None:
        """Choose what is donated: all that is written, but for first values that further runs need."""
        donated = [
            i
            for i in self.captured.written
            if self.provisional or not isinstance(self.slots[i], Constant)
        ]
        captured = self.captured
        self.compiled = Compiled(captured.function, captured.avals, donated=donated, name=self.name)

    def holds(self) -> bool:
        """Whether the program still says what the code would do."""
        for slot, spec in zip(self.slots, self.captured.specs, strict=True):
            if isinstance(slot, weakref.ref):
                cell = slot()
                if cell is None or cell.spec is not spec:
                    return False
        for grad in self.grads:
            leaf = grad.leaf()
            if leaf is None or (leaf.grad is not None) != grad.had:
                return False
        return self.guards.hold() and self.optimizers.hold()

    def run(self, arguments: Arguments) -> Any:
        """Run the program on what the cells hold now, and write back what it wrote."""
        captured = self.captured
        for rate in self.optimizers.rates:
            rate.refresh()
        cells: list[Any] = [self._cell(slot, arguments) for slot in self.slots]
        for i in self.compiled.donated:
            if not isinstance(cells[i], Constant):  # of which nothing is left after the only run
                own(cells[i])
        operands = [c.value if isinstance(c, Constant) else c.array for c in cells]
        if self.compiled.forward is None:
            self.compiled.compile()
        count = captured.outputs + captured.others
        fresh = [Buffer(None, None) for _ in range(count)]  # type: ignore[arg-type]  # set by the run
        written = [
            c.cell() if isinstance(c, Constant) else c for c in (cells[i] for i in captured.written)
        ]
        run_into(self.compiled.forward, operands, [*fresh, *written, *self.kept])
        for cell, spec in zip(written, captured.new_specs, strict=True):
            cell.spec = spec
        for grad in self.grads:
            leaf = grad.leaf()
            if leaf is not None:
                leaf.grad = grad.after
        return self._result([b.array for b in fresh])

    def _cell(self, slot: Any, arguments: Arguments) -> Any:
        if type(slot) is int:
            return buffer_of(arguments.leaves[slot])
        return slot if isinstance(slot, Constant) else slot()

    def _result(self, arrays: list[Any]) -> Any:
        where = self.captured.specs[0].placement if self.captured.specs else placement.current()
        leaves = []
        for leaf in self.captured.leaves:
            if isinstance(leaf, Output):
                first = 0 if leaf.differentiable else self.captured.outputs
                array = arrays[first + leaf.position]
                leaf = wrap_result(result_leaf(array, where), array, self)
            leaves.append(leaf)
        return pytree.tree_unflatten(leaves, self.captured.structure)


class Constant:
    """An input that is the same at each run: the first value of a tensor that the code makes and keeps."""

    def __init__(self, cell: Any, value: Any):
        self.cell, self.value = cell, value


class Jit:
    """A torch function with effects, compiled for each signature. Made by `jit`."""

    def __init__(self, function: Callable[..., Any], name: str):
        self._function = function
        self._name = name
        self._steps: dict[Any, Step] = {}
        self._numbers = Numbers()
        self._hits = self._misses = 0
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if tracing.active():
            return self._function(*args, **kwargs)
        arguments = Arguments(args, kwargs, self._numbers)
        key = key_of(arguments)
        step = self._steps.get(key)
        if step is None or step.provisional or not step.holds():
            try:
                step = self._trace(arguments, key, step)
            except CaptureError:
                if not self._numbers.fix(arguments.structure):
                    raise
                return self(*args, **kwargs)  # with every number static
        else:
            self._hits += 1
        return step.run(arguments)

    def _trace(self, arguments: Arguments, key: Any, previous: Step | None) -> Step:
        self._misses += 1
        with explained(self._function):
            step = trace_step(self._function, arguments, self._name)
        step.provisional = previous is None and step.provisional
        step.prepare()
        if previous is not None and _same(previous, step):
            step.compiled.forward = previous.compiled.forward
        self._steps[key] = step
        return step

    def cache_info(self) -> CacheInfo:
        """Hits, misses, and how many programs are kept."""
        return CacheInfo(self._hits, self._misses, None, len(self._steps))

    def clear_cache(self) -> None:
        """Forget every program."""
        self._steps.clear()
        self._hits = self._misses = 0


def trace_step(function: Callable[..., Any], arguments: Arguments, name: str) -> Step:
    """Trace a call for its signature."""
    leaves = arguments.leaves
    args, kwargs = pytree.tree_unflatten(leaves, arguments.structure)
    guards = Guards(function)
    optimizers = Optimizers()
    before = _gradients(guards.tensors(arguments.leaves))
    try:
        with guards.watching(), optimizers.prepared():
            captured, session = capture(lambda: function(*args, **kwargs), False)
        optimizers.check_rates(session.written)
        after = _gradients(
            [leaf for reference, _ in before.values() if (leaf := reference()) is not None]
        )
    finally:
        for reference, grad in before.values():
            leaf = reference()
            if leaf is not None:
                leaf.grad = grad
    place = {
        id(buffer_of(t)): i
        for i, t in enumerate(leaves)
        if isinstance(t, Tensor) and t.device.type == "jax"
    }
    slots: list[Any] = []
    for reference in captured.cells:
        cell = reference()
        if session.trace.bore(cell):
            slots.append(Constant(reference, cell.array))
        else:
            slots.append(place.get(id(cell), reference))
    if any(slots[i] in arguments.copied for i in captured.written if type(slots[i]) is int):
        raise CaptureError(
            "the step writes to an argument that is a part of a larger tensor",
            "Pass the whole tensor and take the part inside.",
        )
    step = Step(captured, slots, guards, name)
    step.optimizers = optimizers
    step.grads = _changed(before, after)
    step.kept = [reference() for reference, _ in captured.escaped]
    for buffer, (_, spec) in zip(step.kept, captured.escaped, strict=True):
        buffer.spec = spec
    step.provisional = bool(step.kept) or any(isinstance(s, Constant) for s in slots)
    return step


def _gradients(leaves: list[Tensor]) -> dict[int, tuple[Any, Any]]:
    return {id(t): (weakref.ref(t), t.grad) for t in leaves if t.is_leaf and t.requires_grad}


def _changed(before: dict[int, tuple[Any, Any]], after: dict[int, tuple[Any, Any]]) -> list[Grad]:
    found = []
    for key, (reference, old) in before.items():
        new = after[key][1] if key in after else None
        leaf = reference()
        if leaf is not None and new is not old:
            grad = Grad(leaf, old)
            grad.after = new
            found.append(grad)
    return found


def _same(first: Step, second: Step) -> bool:
    """Whether two traces gave the same program, but for where its inputs come from."""
    a, b = first.captured, second.captured
    return (
        first.compiled.forward is not None
        and first.compiled.donated == second.compiled.donated
        and a.written == b.written
        and len(first.kept) == len(second.kept)
        and [(x.shape, x.dtype) for x in a.avals] == [(x.shape, x.dtype) for x in b.avals]
        and str(a.jaxpr) == str(b.jaxpr)
        and _same_constants(a.constants, b.constants)
    )


def _same_constants(first: list[Any], second: list[Any]) -> bool:
    return all(
        x == y if type(x) is int or type(y) is int else np.array_equal(x, y)
        for x, y in zip(first, second, strict=True)
    )


def jit(function: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Compile torch code with effects, such as a whole training step, into one program a signature.

    `zero_grad`, forward, `backward`, clipping and `optimizer.step()` become one XLA program; parameters, gradients and
    optimizer state are donated to it and written back. The Python code runs when a signature is met first (twice where
    it makes lasting state); later calls run the program alone. Learning rates are read from the optimizer at each
    call, so that schedulers work, called outside.

    Args:
        function: the step. Left out, `jit` is a decorator.
        name: what the program is called in profiles.

    Returns:
        A callable that returns what the function returns; tensors in it carry no gradient history.

    Raises:
        CaptureError: the code does what a captured program cannot.

    Example:
        >>> import torch, jaxtorch
        >>> w = torch.ones(2, device="jax", requires_grad=True)
        >>> optimizer = torch.optim.SGD([w], lr=0.5)
        >>> @jaxtorch.jit
        ... def step(x):
        ...     optimizer.zero_grad()
        ...     loss = (w * x).sum()
        ...     loss.backward()
        ...     optimizer.step()
        ...     return loss
        >>> step(torch.ones(2, device="jax"))
        tensor(2., device='jax:0')
        >>> w
        tensor([0.5000, 0.5000], device='jax:0', requires_grad=True)
    """
    if function is None:
        return functools.partial(jit, name=name)
    return Jit(function, name or name_of(function))
