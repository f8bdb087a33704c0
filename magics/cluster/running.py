"""A cell in the processes of a cluster: sent, followed while it runs, interrupted."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from jaxtorch.widgets.cluster import OutputsView, ProcessOutput

from . import engine
from .processes import Cluster, Process, stop
from .showing import Display

if TYPE_CHECKING:
    import ipyparallel

POLL = 0.1  # seconds between two looks at the processes
ALONE = (
    10.0  # seconds for which the others go on after one has failed: they may wait for it forever
)
GRACE = 5.0  # seconds in which interrupted processes must stop

_COLOR = re.compile(r"\x1b\[[\d;]*m")
_UNDEFINED = re.compile(r"^NameError: name '(\w+)' is not defined")
LOST = "Their variables are lost; the next `%%jax cluster` cell starts new ones."


class ClusterError(RuntimeError):
    """A cell failed in a process. Only the message is shown: the outputs above have the traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"ClusterError: {self.args[0]}"]


class _Run:
    """A cell that runs in one process."""

    def __init__(self, cluster: Cluster, process: Process, code: str):
        self.process = process
        self.output = ProcessOutput(process.rank)
        self._cluster = cluster
        self._begun = time.monotonic()
        self._result = cluster.client[process.engine].execute(code, silent=False, block=False)
        self._interrupted = False

    @property
    def running(self) -> bool:
        return self.output.state == "running"

    def interrupt(self) -> None:
        """Send Ctrl-C to the process."""
        self._interrupted = True
        with suppress(Exception):  # it may have ended just now
            self._cluster.client.send_signal(signal.SIGINT, self.process.engine, block=False)

    def look(self) -> None:
        """Read what has arrived."""
        if not self.running:
            return
        output, result = self.output, self._result
        output.seconds = time.monotonic() - self._begun
        if result.ready():
            result.wait_for_output(1)
            self._finished(result.exception())
        elif not self._cluster.alive(self.process):
            self._lost()
        metadata = result.metadata
        one = metadata[0] if isinstance(metadata, list) else metadata
        output.printed, output.warned = one["stdout"] or "", one["stderr"] or ""
        shown = [content["data"] for content in one["outputs"]]
        if one["execute_result"]:
            shown.append(one["execute_result"]["data"])
        output.displayed = shown

    def _lost(self) -> None:
        self.output.state = "ended"
        self.output.error = "the process ended"

    def _finished(self, error: ipyparallel.RemoteError | None) -> None:
        output = self.output
        output.state = "done" if error is None else "failed"
        if error is None:
            return
        if error.ename == "EngineError":  # ipyparallel's own: the process is gone
            self._lost()
            return
        first = (str(error.evalue).splitlines() or [""])[0]
        output.error = f"{error.ename}: {first}".removesuffix(": ")
        output.traceback = _short(_COLOR.sub("", error.traceback or output.error))
        if error.ename == "KeyboardInterrupt" and self._interrupted:
            output.state, output.traceback, output.error = "interrupted", "", ""


def _short(traceback: str) -> str:
    """A traceback without its heading: the exception's name is also in its last line."""
    lines = traceback.splitlines()
    if lines and set(lines[0]) == {"-"}:
        lines = lines[2:]
    return "\n".join(lines).strip("\n")


def run(
    cluster: Cluster,
    head: str,
    body: str,
    number: int,
    display: Display,
    names: Collection[str] = (),
) -> None:
    """Run a cell in all processes, and wait for them.

    Args:
        head: the line of the magic, without `%%jax`.
        number: the cell's number.
        display: shows the outputs while the cell runs and at its end.
        names: the session's own variables. If a process lacks one of them, the message says how to copy it.

    Raises:
        ClusterError: the cell failed in a process, or a process ended.
        KeyboardInterrupt: the user interrupted it; so were the processes.
    """
    code = f"__import__({engine.__name__!r}, fromlist=['run']).run({head!r}, {body!r}, {number})"
    code += ";" if body.rstrip().endswith(";") else ""
    runs = [_Run(cluster, process, code) for process in cluster.processes]
    notes: list[str] = []
    try:
        _follow(runs, display)
    except KeyboardInterrupt:
        _interrupt(cluster, runs, notes)
        display.end(_view(runs, notes))
        raise
    others = [one for one in runs if one.running]
    ended = [one.process for one in runs if one.output.state == "ended"]
    if ended:
        notes.append(
            f"{named(ended)} ended while the cell ran, so the others were ended too. {LOST}"
        )
        stop()
    elif others:
        failed = [one.process for one in runs if one.output.state == "failed"]
        notes.append(
            f"{named([one.process for one in others])} did not finish within {ALONE:.0f} s after "
            f"{named(failed).lower()} had failed, and had to be interrupted."
        )
        _interrupt(cluster, runs, notes)
    lacking = {name for one in runs for name in _UNDEFINED.findall(one.output.error)}
    notes += [
        f"{name!r} is a variable of this session, not of the processes: `%%jax cluster --push {name}` copies it."
        for name in sorted(lacking.intersection(names))
    ]
    view = _view(runs, notes)
    display.end(view)
    _raise_for(view.processes)


def _follow(runs: Sequence[_Run], display: Display) -> None:
    """Wait until all processes have ended, or one has failed and the others run on for too long."""
    failed_at = None
    shown = ""
    while True:
        for one in runs:
            one.look()
        states = {one.output.state for one in runs}
        if "running" not in states or "ended" in states:
            return
        now = time.monotonic()
        if "failed" in states and failed_at is None:
            failed_at = now
        if failed_at is not None and now - failed_at > ALONE:
            return
        if (seen := repr([one.output for one in runs])) != shown:
            shown = seen
            display.show(_view(runs, ()))
        time.sleep(POLL)


def _interrupt(cluster: Cluster, runs: Sequence[_Run], notes: list[str]) -> None:
    """Interrupt the processes that are still running, and end all of them if they cannot continue together.

    An interrupted process may have left a collective that it began. The others never join it, and the next collective
    of that process would wait behind it. So all processes run one more collective; one that does not finish it in time
    is unusable.
    """
    for one in runs:
        if one.running:
            one.interrupt()
    try:
        _until_idle(runs)
        stuck = [one.process for one in runs if one.running] or cluster.unsettled(GRACE)
    except KeyboardInterrupt:  # pressed again: do not wait
        stuck = cluster.processes
    if stuck:
        for one in runs:
            if one.running:
                one.output.state = "ended"
        notes.append(
            f"{named(stuck)} did not stop within {GRACE:.0f} s: a collective waits for all processes. "
            f"So all processes were ended. {LOST}"
        )
        stop()


def _until_idle(runs: Sequence[_Run]) -> None:
    deadline = time.monotonic() + GRACE
    while any(one.running for one in runs) and time.monotonic() < deadline:
        for one in runs:
            one.look()
        time.sleep(POLL)


def _view(runs: Sequence[_Run], notes: Sequence[str]) -> OutputsView:
    return OutputsView([one.output for one in runs], notes)


def named(processes: Sequence[Process]) -> str:
    """
    Example:
        >>> from jaxtorch.magics.cluster.processes import Process
        >>> named([Process(0, 0, "", 1, ""), Process(2, 2, "", 1, "")])
        'Processes 0 and 2'
    """
    ranks = [str(process.rank) for process in processes]
    if len(ranks) == 1:
        return f"Process {ranks[0]}"
    return f"Processes {', '.join(ranks[:-1])} and {ranks[-1]}"


def _raise_for(outputs: Sequence[ProcessOutput]) -> None:
    failed = [one for one in outputs if one.state in ("failed", "ended") and one.error]
    if not failed:
        return
    first, *more = failed
    same = [one.rank for one in more if one.error == first.error]
    ranks = ", ".join(map(str, [first.rank, *same]))
    rest = (
        f" ({len(more) - len(same)} more failed with other errors)" if len(more) > len(same) else ""
    )
    raise ClusterError(f"process{'es'[: 2 * bool(same)]} {ranks}: {first.error}{rest}")
