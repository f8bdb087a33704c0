"""Finds the programs that ran in a profile among the live executables.

An event names its program by module name and id. The id comes from the process that compiled the program. So two
programs from the persistent cache may share an id, and the id alone does not lead to the executable. The run number
does (`fingerprint.py`). If it is ambiguous (several executables without a known first run, or two with the same code),
the executable that contains the events' instructions is chosen. If several contain them, the one that was launched is
chosen. Equal code is common: an operator is compiled again whenever its key changes, even if the change does not matter
to the operator, as with torch's default dtype.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jax.extend import backend

from ..hlo.inferred import infer_origins
from ..hlo.module import Module, read_module
from ..programs import ProgramInfo, programs
from .events import Events
from .fingerprint import first_run, nth_run
from .launches import Launch
from .sampling import ProfileWindow


@dataclass(frozen=True)
class ProfiledProgram:
    """A program that ran.

    Attributes:
        name: the name shown to the user.
        info: the session's record of it; None for programs that JAX runs on its own.
        running: XLA's executable; None if it is gone.
    """

    name: str
    info: ProgramInfo | None
    running: Any

    @property
    def kind(self) -> str:
        """The same as `ProgramInfo.kind`; "other" for programs that JAX runs on its own."""
        return self.info.kind if self.info is not None else "other"

    @property
    def title(self) -> str:
        """Its name, followed by "(backward)" if it is the backward program of a capture."""
        part = self.info.part if self.info is not None else ""
        return f"{self.name} ({part})" if part == "backward" else self.name

    @property
    def backward(self) -> bool:
        """Whether the whole program is a backward pass."""
        return self.info is not None and self.info.part == "backward"

    @cached_property
    def module(self) -> Module | None:
        """Its HLO; None if it is gone."""
        if self.running is None:
            return None
        proto = self.info.hlo_proto() if self.info is not None and self.kind != "eager" else None
        module = read_module(proto or _proto(self.running))
        return infer_origins(module, self.info.stablehlo if self.info is not None else lambda: None)


def assign(
    events: Events, launches: tuple[Launch, ...], windows: tuple[ProfileWindow, ...] = ()
) -> tuple[list[ProfiledProgram], np.ndarray, np.ndarray]:
    """The programs that ran, and for each device event the index of its program and of its launch (-1 if unknown)."""
    launched: dict[Any, list[int]] = defaultdict(list)
    for i, launch in enumerate(launches):
        launched[_running(launch.record)].append(i)
    infos = {running: info for info in programs() if (running := _running(info._record))}
    live = _live_executables({p.name for p in events.programs})
    likely = {**dict.fromkeys(infos, 1), **dict.fromkeys(launched, 2)}
    number_of: dict[Any, int] = {}
    executables: list[ProfiledProgram] = []
    executable_of = np.zeros(len(events), np.int64)
    launch_of = np.full(len(events), -1, np.int64)
    for rows, running, name in _groups(events, live, likely):
        number = number_of.setdefault(running or name, len(executables))
        if number == len(executables):
            info = infos.get(running)
            executables.append(
                ProfiledProgram(info.name if info is not None else name, info, running)
            )
        executable_of[rows] = number
    window_of = np.searchsorted([w.start for w in windows[1:]], events.start, side="right")
    firsts = [w.launches for w in windows[1:]]
    for running, indices in launched.items():
        rows = np.flatnonzero(executable_of == number_of.get(running, -1))
        windows_of_launches = np.searchsorted(firsts, indices, side="right")
        for window in np.unique(window_of[rows]).tolist():
            within = rows[window_of[rows] == window]
            of_window = np.array(indices)[windows_of_launches == window].tolist()
            if of_window:
                launch_of[within] = _pair_with_launches(events.run[within], of_window, launches)
    return executables, executable_of, launch_of


def _running(record: Any) -> Any:
    """XLA's executable of a record, if it is still alive."""
    handle = record.handle()
    return None if handle is None else handle.executable.runtime_executable()


def _live_executables(names: set[str]) -> dict[str, list[Any]]:
    """The live executables whose modules have these names, by name."""
    executables = defaultdict(list)
    for executable in backend.get_backend().live_executables():
        name = executable.hlo_modules()[0].name
        if name in names:
            executables[name].append(executable)
    return executables


def _proto(running: Any) -> bytes:
    return bytes(running.hlo_modules()[0].as_serialized_hlo_module_proto())


def _groups(
    events: Events, live: dict[str, list[Any]], likely: dict[Any, int]
) -> list[tuple[np.ndarray, Any, str]]:
    """(rows, executable, name) for each executable; None replaces an executable that is gone.

    `likely` ranks the executables with equal code.
    """
    groups: list[tuple[np.ndarray, Any, str]] = []
    for number, program in enumerate(events.programs):
        rows = np.flatnonzero(events.program == number)
        name = program.name.removeprefix("jit_")
        runs_of: dict[Any, list[int]] = defaultdict(list)
        for run in np.unique(events.run[rows]).tolist():
            runs_of[_nearest(live.get(program.name, ()), run)].append(run)
        for candidates, runs in runs_of.items():
            group = rows[np.isin(events.run[rows], runs)]
            groups.append((group, _best_match(candidates, events, group, likely), name))
    return groups


def _nearest(candidates: Iterable[Any], run: int) -> tuple[Any, ...]:
    """The candidates whose first run number is closest below a run. Without any, those whose first run is unknown."""
    begin = {c: first_run(c.fingerprint or b"") for c in candidates}
    nth = {c: nth_run(run, first) for c, first in begin.items() if first is not None}
    least = min((n for n in nth.values() if n is not None), default=None)
    if least is not None:
        return tuple(c for c, n in nth.items() if n == least)
    return tuple(c for c, first in begin.items() if first is None)


def _best_match(
    candidates: tuple[Any, ...], events: Events, group: np.ndarray, likely: dict[Any, int]
) -> Any:
    """The candidate that contains the most instructions of a group of events. `likely` decides between equals."""
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    wanted = {events.names[n] for n in np.unique(events.name[group])}
    has = {c: {i.name for i in read_module(_proto(c)).instructions.values()} for c in candidates}
    return max(candidates, key=lambda c: (len(wanted & has[c]), likely.get(c, 0)))


def _pair_with_launches(
    run: np.ndarray, indices: list[int], launches: tuple[Launch, ...]
) -> np.ndarray:
    """The launch of each event of an executable. Sorted by number, its runs are its launches in order.

    If some runs left no event, runs and launches cannot be paired. Launches are then assigned only if all of them come
    from one line.
    """
    numbers = run % (1 << 32)
    if numbers.max() - numbers.min() > 1 << 31:  # the counter wrapped around
        numbers = (numbers + (1 << 31)) % (1 << 32)
    numbers = numbers - numbers.min()
    if numbers.max() + 1 == len(indices):
        return np.array(indices)[numbers]
    same = len({launches[i][1:] for i in indices}) == 1
    return np.full(len(run), indices[0] if same else -1)
