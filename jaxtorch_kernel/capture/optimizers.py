"""Optimizers inside a captured step.

`optimizer.step()` reads Python numbers that change between steps: the learning rate, which a scheduler sets, and the
step count, which torch stores on the CPU. Tracing would turn them into constants. So torch's own step hooks prepare an
optimizer that steps in a trace:

* the learning rate in each parameter group becomes a tensor (`Rate`), which gets the group's number before each run;
* the optimizer runs with torch's `capturable=True`, and its step count moves to the device;
* the state that torch's optimizer lacks is created, outside the trace, so that one trace serves all calls.

After the step the groups are restored, so that other code still reads Python numbers. An optimizer that needs its
learning rate as a number is traced with a number (`rates=False`). Everything else that decides what an optimizer does
is compared before each run (`UsedOptimizer`). Numbers that its own step sets in a group (`group["step"] += 1`) are set
again after each run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..device.optimizers import closure_of, is_fusible, move_counts
from ..device.sharded_optimizers import shard_state
from ..dispatch import pausing
from ..programs import tracing
from ..programs.trees import is_device_tensor
from ..storage.buffer import Buffer, buffer_of
from ..storage.hollow import is_hollow
from .dependencies.guard import Change
from .dependencies.host_number import HostNumber, holds_host_number
from .dependencies.recorder import Recorder
from .dependencies.slots import Slot
from .errors import CaptureError
from .failed_traces import undone
from .optimizer_state import (
    SavedState,
    StateOf,
    add_momentum,
    create_state,
    holds_tracers,
    is_torchs,
    tensor_ids,
)
from .rates import Rate
from .used_optimizer import Group, UsedOptimizer

Tensor = torch.Tensor


class Optimizers:
    """The optimizers that the code uses while a step is traced.

    Args:
        recorder: is notified of each optimizer.
        rates: whether learning rates are operands.
        older: objects that existed before the trace.
    """

    def __init__(
        self,
        recorder: Recorder | None = None,
        rates: bool = True,
        older: Iterable[object] = (),
    ) -> None:
        self._as_operands = rates
        self.rates: list[Rate] = []
        self.used: dict[int, UsedOptimizer] = {}
        self._recorder = recorder
        # An optimizer that the code makes at each call has new state at each call.
        self._older = {id(o) for o in older if isinstance(o, torch.optim.Optimizer)}
        self._before: list[tuple[Group, str, object]] = []
        self._saved: dict[int, SavedState] = {}
        self._prepared: dict[int, dict[int, Rate]] = {}
        self._state = StateOf()
        self._thread = threading.get_ident()

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Context of a trace, in which every optimizer that steps is prepared. At the end its groups are restored; if
        the trace fails, so is its state.
        """
        with undone() as self._saved:
            handles = (
                register_optimizer_step_pre_hook(self._prepare),
                register_optimizer_step_post_hook(self._finish),
            )
            try:
                yield
            except BaseException:
                self._saved = {}
                self._restore_groups()
                for known in self.used.values():
                    known.restore_numbers()
                raise
            finally:
                for handle in handles:
                    handle.remove()
                self._restore_groups()
                self._state = StateOf()
                if self._recorder is not None:
                    for optimizer in self._recorder.optimizers.values():
                        self.used.setdefault(id(optimizer), UsedOptimizer(optimizer))
                for known in self.used.values():
                    known.settle()
                self._recorder = None

    def state_only_grew(self) -> bool:
        """In the trace: whether all state from before the trace is still there (new parameters may have got theirs)."""
        states = self._saved.values()
        before = [set(tensor_ids(saved.by_parameter)) for saved in states]
        now = [set(tensor_ids(saved.optimizer.state)) for saved in states]
        # An optimizer whose state has just begun may be made by each call.
        return all(
            old <= new and bool(old) == bool(new) for old, new in zip(before, now, strict=True)
        )

    def repeats(self) -> list[Callable[[], None]]:
        """What each run repeats: the numbers that optimizers set in their groups."""
        return [known.set_numbers for known in self.used.values() if known.current != known.numbers]

    def undo_state(self) -> bool:
        """Take the values of the trace out of the state of the optimizers, because no run follows it.

        Returns:
            Whether there were any.
        """
        for known in self.used.values():
            known.restore_numbers()
        states, self._saved = self._saved.values(), {}
        traced = [
            (saved.optimizer, p, saved.by_parameter.get(p))
            for saved in states
            for p, state in saved.optimizer.state.items()
            if holds_tracers(state)
        ]
        for optimizer, p, old in traced:
            if old is None:
                del optimizer.state[p]
            else:
                optimizer.state[p] = old
        return bool(traced)

    def refresh(self) -> None:
        """Before a run: update the program's learning rates."""
        self._saved = {}  # kept after the trace for `undo_state`, in case no run follows
        arrays: dict[Hashable, jax.Array] = {}
        for rate in self.rates:
            rate.refresh(arrays)

    def hold(self) -> bool:
        """Whether no optimizer has changed since the trace."""
        return all(known.holds() for known in self.used.values())

    def varied(self) -> list[Slot]:
        """The settings of groups that are other numbers than in the trace."""
        return [slot for known in self.used.values() for slot in known.varied()]

    def changes(self) -> list[Change]:
        """The changes of the optimizers."""
        return [change for known in self.used.values() for change in known.changes()]

    def _prepare(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if threading.get_ident() != self._thread:
            return
        # A closure has yet to compute the gradients that what follows depends on.
        closure = closure_of(args, kwargs)
        known = self.used.setdefault(id(optimizer), UsedOptimizer(optimizer))
        known.check_numbers()
        first = id(optimizer) not in self._prepared
        rates = self._prepared.setdefault(id(optimizer), {})
        trace = tracing.current()
        if trace is not None and is_torchs(optimizer):
            trace.root.is_state, trace.root.creates_state = self._state.contains, True
            if first:
                self._state.optimizers.append(optimizer)
        if first and self._recorder is not None:
            self._recorder.uses(optimizer)
        for index, group in enumerate(optimizer.param_groups):
            if not any(p.device.type == "jax" for p in group["params"]):
                continue
            if "capturable" in group:
                self._set(group, "capturable", True)
            varies = any(holds_host_number(v) for k, v in group.items() if k != "params")
            for name in ("foreach", "fused") if varies else ():
                if name in group:  # code in C, which takes Python's own numbers
                    self._set(group, name, False)
            if self._as_operands and _takes_tensor_rate(optimizer) and _is_rate(group.get("lr")):
                if index not in rates:
                    rates[index] = Rate(optimizer, index)
                    self.rates.append(rates[index])
                    known.rates.add(index)
                self._set(group, "lr", rates[index].tensor)
            if first:
                move_counts(optimizer, group)
            if closure is None and not varies and is_fusible(optimizer, group):
                self._set(group, "fused", True)
        complete = id(optimizer) in self._older and closure is None
        asked = self._recorder is None or self._recorder.may_know_state(optimizer)
        if complete and not asked and _can_create_state(optimizer):
            with tracing.outside(), pausing.paused(), jax.ensure_compile_time_eval():
                add_momentum(optimizer)
                create_state(optimizer)
                shard_state(optimizer)
        else:
            add_momentum(optimizer)

    def _finish(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """After a step, restore the settings that were prepared, and accept those that the step has set."""
        if threading.get_ident() != self._thread:
            return
        self._restore_groups()
        self.used[id(optimizer)].accept_numbers()

    def _restore_groups(self) -> None:
        """Restore the settings of the groups."""
        for group, name, value in reversed(self._before):
            group[name] = value
        self._before.clear()
        trace = tracing.current()
        if trace is not None:
            trace.root.creates_state = False

    def _set(self, group: Group, name: str, value: object) -> None:
        self._before.append((group, name, group[name]))
        group[name] = value

    def check(self, written: list[Buffer]) -> None:
        """Refuse a step that sets its own learning rate, or another number of its optimizer. Called in the trace.

        Raises:
            CaptureError: if the step wrote the buffer of a learning rate, or a number has changed.
        """
        for known in self.used.values():
            known.check_numbers()
        for rate in self.rates:
            if any(buffer is rate.buffer for buffer in written):
                raise CaptureError(
                    "captured code steps a scheduler, but its Python runs only once",
                    "Call scheduler.step() outside, after the captured step.",
                )


def _can_create_state(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the state that the step of an optimizer creates can be created before it, outside the trace.

    Then the program of the first call is also that of the second. Hooks of the user's would see state that torch has
    not created yet, and that of hollow parameters has no values.
    """
    trace = tracing.current()
    if trace is None or trace.parent is not None or not is_torchs(optimizer):
        return False
    if vars(optimizer).get("_optimizer_step_pre_hooks"):
        return False
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    with tracing.outside():
        return not any(is_hollow(buffer_of(p).array) for p in filter(is_device_tensor, parameters))


def _is_rate(value: object) -> bool:
    """Whether a learning rate can be read as a number at each run."""
    if type(value) is HostNumber:  # it varies together with other settings
        return False
    return isinstance(value, float) or (
        isinstance(value, Tensor) and value.device.type == "cpu" and not value.dim()
    )


def _takes_tensor_rate(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `step` computes with a learning rate that is a tensor."""
    return (
        isinstance(optimizer, torch.optim.SGD)
        or "capturable" in optimizer.defaults
        or getattr(optimizer, "takes_tensor_rate", False)
    )
