"""The cache of compiled programs, one for each call signature, that `pure` and `jit` share.

A call whose arguments are all device tensors is looked up with torch's tensor guard (`quick.py`), any other call with
`key_of`. The program found runs if its guards still hold (`Replay.live_cells`); otherwise the function is retraced. A
signature keeps separate programs for training and evaluation: switching the mode of a module evicts neither.
"""

from __future__ import annotations

import functools
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch

from ..base.ambient import ambient
from ..base.torch_private import transformed
from ..programs import tracing
from ..programs.compiling import phase
from ..programs.site import origin, site_of
from ..programs.stats import FunctionRecord, Reason, TraceRecord, tracing_as
from .dependencies.outside import is_iterator, refuse_iterator
from .errors import CaptureError, MakesParameters, explained
from .named import Named
from .numbers import Numbers
from .quick import STALE, Quick, added, quick_of
from .replay import Replay
from .retraces import forget_old_states, state_of, warn_if_often, why
from .sharing import NeedsPlace
from .signature import Arguments, key_of

R = TypeVar("R", bound=Replay)
_MOST_PLAIN = 3
_MOST_MODES = 8  # of one signature: modules may train and evaluate each for itself


class CacheInfo(NamedTuple):
    """Like that of `functools.lru_cache`: cached calls, traced calls, the limit and the number of programs."""

    hits: int
    misses: int
    maxsize: int | None
    currsize: int


class Cached(ABC, Generic[R]):
    """A torch function or module, compiled for each signature.

    Args:
        function: the function to trace.
        name: the name of the programs.
        max_entries: how many programs to keep.
        static: names of arguments whose numbers are part of the program, never operands.
        donate: names of arguments whose memory is donated to the program.
    """

    kind = "pure"  # as it is recorded

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        max_entries: int | None = None,
        static: str | Sequence[str] = (),
        donate: str | Sequence[str] = (),
    ):
        self._function = function
        self._name = name
        self._max_entries = max_entries
        self._static = Named(function, static)
        self._donate = Named(function, donate)
        # Of each signature, the latest first.
        self._programs: OrderedDict[Any, list[R]] = OrderedDict()
        # By the number of arguments, the latest first.
        self._quick: dict[int, tuple[Quick, ...]] = {}
        self._numbers = Numbers()
        self._parts: dict[
            Any, set[int]
        ] = {}  # structure -> arguments whose place in their memory counts
        self.source = FunctionRecord(name, self.kind)  # of its programs, and counts its calls
        self.source.caches.add(self)
        functools.update_wrapper(self, function, updated=())

        self._plain_calls = 0  # one after another, that made parameters
        self._lock = threading.RLock()  # of a trace, and of the table of programs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if transformed() or (tracing.depth and tracing.active()):
            # Part of a larger program, or under a transform of torch's, which sees through it.
            return self._function(*args, **kwargs)
        if not kwargs:
            now = ambient()
            for then, matches, call_of, _ in self._quick.get(len(args), ()):
                if then == now and matches(*args) and (result := call_of(args)) is not STALE:
                    self.source.hits += 1
                    return result
        with self.exclusive():
            try:
                replay, arguments, cells, traced = self.find(args, kwargs)
            except MakesParameters as error:
                self.allow_plain(error)
                return self._run_plain(args, kwargs)
            # Asked before the run, which may change the arguments; not before the first, which prepares the program.
            if not traced and not kwargs and (quick := quick_of(arguments, replay)) is not None:
                self._quick[len(args)] = added(quick, self._quick.get(len(args), ()))
            result = replay.run(arguments.leaves, cells, arguments)
        if not traced:
            for again in replay.again:
                again()
        return result

    def exclusive(self) -> AbstractContextManager[Any]:
        """A lock, held while a call may be traced."""
        return self._lock

    def find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[R, Arguments, list[Any], bool]:
        """The program of a call, traced if necessary; the arguments of `Replay.run`; whether it was just traced."""
        arguments = Arguments(args, kwargs, self._numbers, self._static, self._parts)
        key = key_of(arguments)
        kept = self._programs.get(key, [])
        replay, cells = _holding(kept, arguments)
        traced = replay is None
        if replay is None or cells is None:
            _check_leaves(arguments.leaves)
            try:
                replay = self._traced(arguments, key, kept[0] if kept else None)
            except MakesParameters:
                raise
            except NeedsPlace as need:
                self._parts.setdefault(arguments.structure, set()).update(need.places)
                return self.find(args, kwargs)
            except (CaptureError, TypeError):  # TypeError: of C code that wants a number
                if not self._numbers.fix(arguments.structure):
                    raise
                return self.find(args, kwargs)  # with every number static
            cells = replay.take_first()
        else:
            self.source.hits += 1
        return replay, arguments, cells, traced

    def _traced(self, arguments: Arguments, key: Any, previous: R | None) -> R:
        trace = self._opened(arguments, previous)
        self._quick.clear()
        started = time.perf_counter()
        try:
            self._check_static(arguments)
            donated = self._donate.places(arguments)
            with explained(self._function), tracing_as(trace), phase(self._name):
                replay = self._trace(arguments, donated, previous)
        except BaseException:
            self.source.history.remove(trace)
            raise
        trace.seconds = time.perf_counter() - started
        warn_if_often(self.source)
        replay.state = trace.state
        self._keep(key, replay)
        self._plain_calls = 0
        return replay

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

    def _run_plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._function(*args, **kwargs)

    def _check_static(self, arguments: Arguments) -> None:
        for i in self._static.places(arguments):
            if isinstance(arguments.leaves[i], torch.Tensor):
                raise TypeError(
                    f"a static argument of {self._name} is a tensor, but a program cannot depend on a tensor's "
                    "values: pass Python values (x.item(), tuple(x.shape)), or remove its name from static_argnames"
                )

    def _keep(self, key: Any, replay: R) -> None:
        waiting = [old for old in self._programs.pop(key, []) if old.waits()]
        self._programs[key] = [replay, *waiting][:_MOST_MODES]
        while self._max_entries is not None and self._count() > self._max_entries:
            oldest, programs = next(iter(self._programs.items()))
            programs.pop()
            if not programs:
                del self._programs[oldest]

    def _kept(self) -> list[R]:
        return [replay for programs in self._programs.values() for replay in programs]

    def _latest(self) -> list[R]:
        """All programs, latest first."""
        return [replay for programs in reversed(self._programs.values()) for replay in programs]

    def _count(self) -> int:
        return sum(map(len, self._programs.values()))

    def _opened(self, arguments: Arguments, previous: R | None) -> TraceRecord:
        """Record the start of a trace and the reasons for it."""
        source, function = self.source, cast(Any, self._function)
        found = origin(None)
        state = state_of(function, arguments)
        trace = TraceRecord(source, None if found is None else site_of(found), state)
        if hasattr(function, "site"):  # it knows better, as a cell does
            trace.site = function.site()
        if previous is not None and previous.provisional and not Replay.changes(previous):
            trace.reasons = [
                Reason("state created by its first run (optimizer state) is now an input")
            ]
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

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        return functools.partial(self, instance)

    def cache_info(self) -> CacheInfo:
        """Hits, misses, and the number of kept programs."""
        source = self.source
        return CacheInfo(source.hits, source.traces, self._max_entries, self._count())

    def clear_cache(self) -> None:
        """Drop every program."""
        self._programs.clear()
        self._quick.clear()
        self.source.hits = self.source.traces = 0
        self.source.history.clear()


def _holding(kept: list[R], call: Arguments) -> tuple[R | None, list[Any] | None]:
    """The program whose guards hold, with its cells."""
    for replay in kept:
        if replay.provisional or (cells := replay.live_cells()) is None:
            continue
        if replay.sharing.arguments_agree(call.leaves, cells, call):
            return replay, cells
    return None, None


def _check_leaves(leaves: list[Any]) -> None:
    for leaf in leaves:
        if is_iterator(leaf):
            refuse_iterator(f"an argument of type {type(leaf).__name__}", None, None)


def name_of(function: Any) -> str:
    """A function's name, or its class's."""
    return str(getattr(function, "__name__", type(function).__name__))


def checked(function: Any, decorator: str) -> Any:
    """Return the function; raise TypeError if it is not callable."""
    if not callable(function):
        raise TypeError(f"{decorator} takes a function or a module, not {type(function).__name__}")
    return function
