"""The cache of compiled programs, one for each call signature, that `pure` and `jit` share.

A call whose arguments are all device tensors is looked up with torch's tensor guard (`quick.py`), any other call with
`key_of`. The program runs if its guards still hold (`Replay.live_buffers`); otherwise the function is retraced. A
signature keeps separate programs for training and evaluation: switching the mode of a module evicts neither.
"""

from __future__ import annotations

import functools
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, Self, TypedDict, TypeVar

import torch

from ..base import garbage
from ..base.ambient import ambient
from ..base.torch_private import pytree, transformed
from ..programs import tracing
from ..programs.compiling import building
from ..programs.site import origin, site_of
from ..programs.stats import FunctionRecord, Reason, TraceRecord, tracing_as
from ..storage.buffer import Buffer
from .dependencies.host_numbers import HostNumbers
from .dependencies.outside import is_iterator, refuse_iterator
from .dependencies.slots import Slot
from .dependencies.varied import may_vary
from .errors import CaptureError, MakesParameters, explained
from .named import NamedArguments
from .numbers import NeedsNumber, Numbers
from .quick import STALE, Quick, added, quick_of
from .replay import Replay
from .retraces import forget_old_states, state_of, warn_if_often, why
from .sharing import NeedsOffset
from .signature import Arguments, key_of

R = TypeVar("R", bound=Replay)
_MOST_PLAIN = 3  # calls in a row that create parameters
# Programs of one signature: each module of a model may be in training or evaluation.
_MOST_MODES = 8


class CacheInfo(NamedTuple):
    """Like that of `functools.lru_cache`: cached calls, traced calls, the limit and the number of programs."""

    hits: int
    misses: int
    maxsize: int | None
    currsize: int


class CaptureOptions(TypedDict, total=False):
    """The keyword arguments of `pure` and `jit`."""

    name: str | None
    max_entries: int | None
    static_argnames: str | Sequence[str]
    donate: str | Sequence[str]


class Cached(ABC, Generic[R]):
    """A torch function or module, compiled for each signature.

    Args:
        function: the function to trace.
        name: the name of the programs.
        max_entries: how many programs to keep.
        static: names of arguments whose numbers are part of the program, never operands.
        donate: names of arguments whose memory is donated to the program.
    """

    kind = "pure"  # of its `Source`

    def __init__(
        self,
        function: Callable[..., object],
        name: str,
        max_entries: int | None = None,
        static: str | Sequence[str] = (),
        donate: str | Sequence[str] = (),
    ):
        self._function = function
        self._options: tuple[object, ...] = (name, max_entries, static, donate)
        self._name = name
        self._max_entries = max_entries
        self._static = NamedArguments(function, static)
        self._donate = NamedArguments(function, donate)
        # The programs of each signature, the latest first.
        self._programs: OrderedDict[Hashable, list[R]] = OrderedDict()
        # By the number of arguments, the latest first.
        self._quick: dict[int, tuple[Quick, ...]] = {}
        self._numbers = Numbers()
        # By the structure of the arguments: those whose offset in their memory is part of the key.
        self._parts: dict[pytree.TreeSpec, set[int]] = {}
        self.source = FunctionRecord(name, self.kind)
        self.source.caches.add(self)
        functools.update_wrapper(self, function, updated=())

        # The slots of numbers that vary, and the paths of those whose values the code needs.
        self._varying: list[Slot] = []
        self._fixed: set[str] = set()
        self._plain_calls = 0  # calls in a row that created parameters
        self._lock = threading.RLock()  # held during a trace and while `_programs` changes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if transformed() or (tracing.depth and tracing.active()):
            # The call becomes part of a larger program, or a transform of torch.func must see its operators.
            return self._function(*args, **kwargs)
        if not kwargs:
            now = ambient()
            for then, matches, call_of, _ in self._quick.get(len(args), ()):
                if then == now and matches(*args) and (result := call_of(args)) is not STALE:
                    self.source.hits += 1
                    return result
        with self.exclusive():
            try:
                replay, arguments, buffers, traced = self.find(args, kwargs)
            except MakesParameters as error:
                self.allow_plain(error)
                return self._run_plain(args, kwargs)
            if traced:
                with garbage.collected_later():  # this run compiles the program
                    return replay.run(arguments.leaves, buffers, arguments)
            # Before the run, which may change the arguments. Not at the first call, whose run completes the program.
            if not kwargs and (quick := quick_of(arguments, replay)) is not None:
                self._quick[len(args)] = added(quick, self._quick.get(len(args), ()))
            result = replay.run(arguments.leaves, buffers, arguments)
        for again in replay.again:
            again()
        return result

    def exclusive(self) -> AbstractContextManager[object]:
        """The lock that is held while a call may be traced."""
        return self._lock

    def find(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[R, Arguments, list[Buffer], bool]:
        """The program of a call, traced if necessary; the arguments of `Replay.run`; whether it was just traced."""
        arguments = Arguments(args, kwargs, self._numbers, self._static, self._parts)
        key = key_of(arguments)
        programs = self._programs.get(key, [])
        replay, buffers = _valid_program(programs, arguments)
        traced = replay is None
        if replay is None or buffers is None:
            _check_leaves(arguments.leaves)
            try:
                replay = self._traced(arguments, key, programs[0] if programs else None)
            except NeedsOffset as need:
                self._parts.setdefault(arguments.structure, set()).update(need.indices)
            except NeedsNumber:
                if not self._numbers.fix(arguments.structure):
                    raise
            if replay is None:  # outside of `except`: a next error has another cause
                return self.find(args, kwargs)
            buffers = replay.first_buffers()
        else:
            self.source.hits += 1
        return replay, arguments, buffers, traced

    def fresh(self) -> Self:
        """The same function with the same options, and no programs yet."""
        return type(self)(self._function, *self._options)  # type: ignore[arg-type]  # those that `__init__` was given

    def _found_without_run(self, args: tuple[object, ...], kwargs: dict[str, object]) -> R:
        """The program of a call, without a run of it."""
        with self.exclusive():
            replay, _, _, traced = self.find(args, kwargs)
            if traced and not replay.undo_trace():
                for programs in self._programs.values():
                    programs[:] = [other for other in programs if other is not replay]
            return replay

    def _traced(self, arguments: Arguments, key: Hashable, previous: R | None) -> R:
        trace = self._open_record(arguments, previous)
        self._quick.clear()
        started = time.perf_counter()
        try:
            self._check_static(arguments)
            donated = self._donate.indices(arguments)
            with explained(self._function), tracing_as(trace), building(self._name):
                replay = self._trace_varying(arguments, donated, previous)
        except BaseException:
            self.source.history.remove(trace)
            raise
        trace.seconds = time.perf_counter() - started
        warn_if_often(self.source)
        replay.state = trace.state
        self._add(key, replay)
        self._plain_calls = 0
        return replay

    def _trace_varying(self, arguments: Arguments, donated: set[int], previous: R | None) -> R:
        """Trace a call with the numbers of the user's objects that vary as operands, if the code works with these."""
        slots = self._varying_slots(previous)
        if not slots and not arguments.numbers:
            return self._trace(arguments, donated, previous)
        numbers = HostNumbers(slots, arguments.caller_leaves)
        replay = None
        try:
            with numbers.substituted():
                replay = self._trace(arguments, donated, previous)
        except (MakesParameters, NeedsOffset):
            raise
        except Exception:  # of any kind, because C code accepts only Python's own numbers
            if arguments.numbers:
                self._fixed.update(slot.path for slot in slots)
                raise NeedsNumber() from None
        if replay is None:  # outside of `except`: a next error has another cause
            replay = self._trace(arguments, donated, previous)
            self._fixed.update(slot.path for slot in slots)
            return replay
        self._varying = slots
        self._fixed.update(source for source in numbers.required if isinstance(source, str))
        self._numbers.fix(
            arguments.structure, {source for source in numbers.required if isinstance(source, int)}
        )
        return replay

    def _varying_slots(self, previous: R | None) -> list[Slot]:
        """The slots whose numbers vary: those that made an earlier program invalid."""
        # A call with other kinds of arguments has no previous program, but the same code.
        previous = previous or next(iter(self._latest()), None)
        slots = [] if previous is None else previous.varied()
        alive = filter(may_vary, (*self._varying, *slots))
        each = {slot.identity: slot for slot in alive}.values()
        return [slot for slot in each if slot.path not in self._fixed]

    def allow_plain(self, error: MakesParameters) -> None:
        """Let a call that creates parameters run as plain Python; raise if the previous calls did so as well."""
        self._plain_calls += 1
        if self._plain_calls > _MOST_PLAIN:
            raise CaptureError(
                f"{error.what}, at every call",
                "Create them once, outside the captured code.",
                error.file,
                error.line,
            )

    def _run_plain(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        return self._function(*args, **kwargs)

    def _check_static(self, arguments: Arguments) -> None:
        for i in self._static.indices(arguments):
            if isinstance(arguments.leaves[i], torch.Tensor):
                raise TypeError(
                    f"a static argument of {self._name} is a tensor, but a program cannot depend on a tensor's "
                    "values: pass Python values (x.item(), tuple(x.shape)), or remove its name from static_argnames"
                )

    def _add(self, key: Hashable, replay: R) -> None:
        """Put a program in front of the other programs of its signature, and evict what exceeds the limits."""
        others = [old for old in self._programs.pop(key, []) if old.may_hold_again()]
        self._programs[key] = [replay, *others][:_MOST_MODES]
        while self._max_entries is not None and self._count() > self._max_entries:
            oldest, programs = next(iter(self._programs.items()))
            programs.pop()
            if not programs:
                del self._programs[oldest]

    def _latest(self) -> list[R]:
        """All programs, latest first."""
        return [replay for programs in reversed(self._programs.values()) for replay in programs]

    def _count(self) -> int:
        return sum(map(len, self._programs.values()))

    def _open_record(self, arguments: Arguments, previous: R | None) -> TraceRecord:
        """Record the start of a trace and the reasons for it."""
        source, caller = self.source, origin(None)
        state = state_of(self._function, arguments)
        trace = TraceRecord(source, None if caller is None else site_of(caller), state)
        site_of_cell = getattr(self._function, "site", None)
        if site_of_cell is not None:  # of a notebook cell, which no line of the user's calls
            trace.site = site_of_cell()
        if previous is not None and previous.provisional and not Replay.changes(previous):
            trace.reasons = [Reason("tensors that its first run created are now inputs")]
        else:
            trace.reasons = why(source, state, self._latest())
        was_dropped = previous is None and any(t.state == state for t in source.history)
        if source.history and (was_dropped or not trace.reasons):
            cause = "an argument whose .grad is read is a different tensor, or arguments share memory differently"
            if previous is None:
                cause = "its program was evicted (max_entries)"
            trace.reasons = [Reason(cause)]
        source.traces += 1
        source.history.append(trace)
        forget_old_states(source)
        return trace

    @abstractmethod
    def _trace(self, arguments: Arguments, donated: set[int], previous: R | None) -> R:
        """Trace a call. `donated`: indices of donated leaves; `previous`: the program whose guards no longer hold."""

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., Any]:
        if instance is None:
            return self
        return functools.partial(self, instance)

    def cache_info(self) -> CacheInfo:
        """Hits, misses, and the number of cached programs."""
        source = self.source
        return CacheInfo(source.hits, source.traces, self._max_entries, self._count())

    def clear_cache(self) -> None:
        """Drop every program."""
        self._programs.clear()
        self._quick.clear()
        self.source.hits = self.source.traces = 0
        self.source.history.clear()


def _valid_program(programs: list[R], call: Arguments) -> tuple[R | None, list[Buffer] | None]:
    """The program whose guards hold, and the buffers that it reads by name."""
    for replay in programs:
        if replay.host_numbers is not None:
            replay.host_numbers.set_arguments(call.caller_leaves)
        if replay.provisional or (buffers := replay.live_buffers()) is None:
            continue
        if replay.sharing.arguments_agree(call.leaves, buffers, call):
            return replay, buffers
    return None, None


def _check_leaves(leaves: list[object]) -> None:
    for leaf in leaves:
        if is_iterator(leaf):
            refuse_iterator(f"an argument of type {type(leaf).__name__}", None, None)


def name_of(function: object) -> str:
    """A function's name, or its class's."""
    return str(getattr(function, "__name__", type(function).__name__))


def check_callable(function: object, decorator: str) -> None:
    """Raise TypeError if `decorator` is not given a function or a module."""
    if not callable(function):
        raise TypeError(f"{decorator} takes a function or a module, not {type(function).__name__}")
