"""The processes of a cluster: started on this machine, or found in a running cluster of ipyparallel's.

Processes that were started here end with the session. ipyparallel's files are in a temporary directory, so that nothing
is left in the user's profile, and the profile's settings have no effect.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from jaxtorch.widgets.units import counted

from . import engine

if TYPE_CHECKING:
    import ipyparallel
    import psutil

START_SECONDS = 120.0  # how long to wait for processes to start
_POLL = 0.1
_PRETENDED = "--xla_force_host_platform_device_count"


@dataclass(frozen=True)
class Process:
    """One process.

    Attributes:
        engine: its number in ipyparallel.
        devices: its own devices in words.
    """

    rank: int
    engine: int
    host: str
    pid: int
    devices: str


@dataclass(frozen=True)
class Wanted:
    """The cluster that a user asks for.

    Attributes:
        n: number of processes.
        devices: number of devices of each.
        profile: the profile of a running ipyparallel cluster; None for processes of this machine.
    """

    n: int | None = None
    devices: int | None = None
    profile: str | None = None

    def fits(self, there: Wanted) -> bool:
        """Whether a cluster matches the request. Omitted values match any."""
        pairs = zip(astuple(self), astuple(there), strict=True)
        return all(mine is None or mine == theirs for mine, theirs in pairs)


@dataclass
class Cluster:
    """The processes that run cells.

    Attributes:
        client: ipyparallel's connection to them.
        wanted: the user's request.
        started: the ipyparallel cluster that was started here; None if it was running already.
        directory: that of ipyparallel's files, if it was started here.
        processes: the processes by rank.
    """

    client: ipyparallel.Client
    wanted: Wanted
    started: ipyparallel.Cluster | None = None
    directory: str = ""
    processes: list[Process] = field(default_factory=list)

    def __str__(self) -> str:
        where = "on this machine" if self.started is not None else f"of {self.wanted.profile}"
        return f"{counted(len(self.processes), 'process', 'processes')} {where}"

    def alive(self, process: Process) -> bool:
        """Whether a process is alive. On another machine, ipyparallel detects its end by missing heartbeats."""
        import psutil

        if self.started is None:
            return process.engine in self.client.ids
        try:
            return bool(psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def dead(self) -> list[Process]:
        """The processes that have ended."""
        return [p for p in self.processes if not self.alive(p)]

    def unsettled(self, seconds: float) -> list[Process]:
        """The processes that do not finish one collective of all of them in time."""
        calls = [self.client[p.engine].apply_async(engine.settle) for p in self.processes]
        deadline = time.monotonic() + seconds
        while not all(call.ready() for call in calls) and time.monotonic() < deadline:
            time.sleep(_POLL)
        pairs = zip(self.processes, calls, strict=True)
        return [p for p, call in pairs if not call.ready() or not call.successful()]

    def push(self, values: Mapping[str, object]) -> None:
        """Set variables in each process.

        Raises:
            UsageError: a value cannot be sent.
        """
        for name, value in values.items():
            try:
                self.client[self._engines].push({name: value}, block=True)
            except Exception as error:
                raise UsageError(_unsent("push", name, error)) from None

    def pull(self, names: Sequence[str]) -> dict[str, list[object]]:
        """The values of variables in the processes, by rank.

        Raises:
            UsageError: a process lacks one, or a value cannot be sent.
        """
        values = {}
        for name in names:
            try:
                values[name] = list(self.client[self._engines].pull(name, block=True))
            except Exception as error:
                raise UsageError(_unsent("pull", name, error)) from None
        return values

    @property
    def _engines(self) -> list[int]:
        return [p.engine for p in self.processes]

    def stop(self) -> None:
        """End the processes that were started here, and close the connection."""
        with suppress(Exception):  # a connection to processes that are gone
            self.client.close()
        if self.started is not None:
            _end(self.started, self.directory)


_current: list[Cluster] = []  # the session's cluster, or none
_last = [Wanted(2, 1)]  # the last request


def current() -> Cluster | None:
    """The session's cluster, if it has one."""
    return _current[0] if _current else None


def stop() -> Cluster | None:
    """Stop the session's cluster. Returns the stopped cluster, or None."""
    cluster = _current.pop() if _current else None
    if cluster is not None:
        cluster.stop()
    return cluster


atexit.register(stop)


def environment(devices: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of processes on this machine: the CPU, with this number of devices in each.

    The session may hold the machine's accelerator, and most accelerators serve one process.

    Example:
        >>> environment(2, {"XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_dump_to=/tmp/x"})["XLA_FLAGS"]
        '--xla_dump_to=/tmp/x --xla_force_host_platform_device_count=2'
    """
    kept = re.sub(rf"{_PRETENDED}=\d+\s*", "", environ.get("XLA_FLAGS", "")).strip()
    return {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{kept} {_PRETENDED}={devices}".strip(),
        "JAXTORCH_PROGRESS": "0",
    }


def begin(wanted: Wanted, say: Callable[[str], None]) -> Cluster:
    """Start processes, or connect to those of a profile, and keep them as the session's cluster.

    Args:
        wanted: the request; omitted values are those of the last one.
        say: shows a line of progress.

    Raises:
        UsageError: no processes could be started; the message says why.
    """
    for name, value in (("-n", wanted.n), ("--devices-per-process", wanted.devices)):
        if value is not None and value < 1:
            raise UsageError(f"`%%jax cluster {name} {value}`: {name} must be at least 1.")
        if value is not None and wanted.profile:
            raise UsageError(
                f"`%%jax cluster --profile {wanted.profile}` uses the engines that are running: omit {name}."
            )
    try:
        import ipyparallel  # noqa: F401
    except ImportError:
        raise UsageError(
            "`%%jax cluster` runs on ipyparallel, which is not installed: `%pip install ipyparallel`."
        ) from None
    if wanted.profile:
        return _connect(wanted.profile, say)
    last = _last[-1]
    n, devices = wanted.n or last.n or 1, wanted.devices or last.devices or 1
    _last[:] = [Wanted(n, devices)]
    return _start(n, devices, say)


def _start(n: int, devices: int, say: Callable[[str], None]) -> Cluster:
    """Start processes on this machine."""
    import ipyparallel
    from traitlets.config import Config

    directory = tempfile.mkdtemp(prefix="jaxtorch-cluster-")
    started = ipyparallel.Cluster(
        n=n,
        profile_dir=directory,
        load_profile=False,
        shutdown_atexit=False,  # `stop` does it, without printing a line
        log_level=logging.ERROR,
        delay=0,
        config=Config(
            {"LocalEngineSetLauncher": {"environment": environment(devices, os.environ)}}
        ),
    )
    try:
        say(f"Starting {n} processes")
        started.start_cluster_sync()
        cluster = Cluster(started.connect_client_sync(), Wanted(n, devices), started, directory)
        _wait_for(cluster, n, say)
        _join(cluster, n, say)
    except BaseException:
        _end(started, directory)
        raise
    _current.append(cluster)
    return cluster


def _connect(profile: str, say: Callable[[str], None]) -> Cluster:
    """Use all engines of a running ipyparallel cluster as the session's cluster.

    Args:
        profile: the name of its profile, or the path of its connection file.

    Raises:
        UsageError: no cluster is running there, or it has no engines.
    """
    import ipyparallel

    by_file = os.sep in profile or profile.endswith(".json")
    try:
        if by_file:
            client = ipyparallel.Client(profile, timeout=10)
        else:
            client = ipyparallel.Client(profile=profile, timeout=10)
    except (OSError, TimeoutError, ipyparallel.error.TimeoutError) as error:
        raise UsageError(
            f"No ipyparallel cluster is running with profile {profile!r}: start one with "
            f"`ipcluster start --n=4 --profile={profile}`. ({str(error).splitlines()[0]})"
        ) from None
    cluster = Cluster(client, Wanted(len(client.ids), None, profile))
    try:
        if not client.ids:
            raise UsageError(
                f"The ipyparallel cluster {profile!r} has no engines yet: try again once they have started."
            )
        _join(cluster, len(client.ids), say)
    except BaseException:
        client.close()
        raise
    _current.append(cluster)
    return cluster


def _wait_for(cluster: Cluster, n: int, say: Callable[[str], None]) -> None:
    """Wait until the processes have started."""
    begun = time.monotonic()
    while (there := len(cluster.client.ids)) < n:
        seconds = time.monotonic() - begun
        say(f"Starting {n} processes: {there} ready, {seconds:.0f} s")
        assert cluster.started is not None
        launchers = cluster.started.engine_set.launchers.values()
        ended = [one for one in launchers if one.state == "after"]
        if ended or seconds > START_SECONDS:
            why = "one ended" if ended else f"only {there} are ready after {seconds:.0f} s"
            said = "".join(one.get_output() for one in ended[:1]).strip().splitlines()[-1:]
            raise UsageError(f"The {n} processes did not start: {why}{': '.join(['', *said])}.")
        time.sleep(_POLL)


def _join(cluster: Cluster, n: int, say: Callable[[str], None]) -> None:
    """Connect the processes with each other and with this session."""
    say(f"Connecting {n} processes")
    client, engines = cluster.client, sorted(cluster.client.ids)[:n]
    coordinator = client[engines[0]].apply_async(engine.address).get()
    if cluster.started is not None:
        coordinator = f"127.0.0.1:{coordinator.rpartition(':')[2]}"
    calls = [
        client[number].apply_async(engine.join, rank, n, coordinator)
        for rank, number in enumerate(engines)
    ]
    for rank, (number, call) in enumerate(zip(engines, calls, strict=True)):
        cluster.processes.append(Process(rank, number, *call.get(timeout=START_SECONDS)))
    if cluster.started is not None:
        others = [p.pid for p in _family(cluster.started)]
        client[engines].apply_async(engine.watch, os.getpid(), others).get(timeout=START_SECONDS)


def _family(started: ipyparallel.Cluster) -> list[psutil.Process]:
    """All processes of a cluster that was started here."""
    import psutil

    launchers = [started.controller]
    if started.engine_set is not None:
        launchers += started.engine_set.launchers.values()
    family: list[psutil.Process] = []
    for pid in [one.pid for one in launchers if one is not None]:
        with suppress(psutil.NoSuchProcess):
            top = psutil.Process(pid)
            family += [*top.children(recursive=True), top]
    return family


def _end(started: ipyparallel.Cluster, directory: str) -> None:
    """End all processes of a cluster at once, because processes that leave one by one wait for each other."""
    import psutil

    family = _family(started)
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(family, timeout=30)  # a loaded machine takes its time to free their memory
    with suppress(Exception):  # it removes its files; the processes are gone
        started.stop_cluster_sync()
    shutil.rmtree(directory, ignore_errors=True)


def _unsent(option: str, name: str, error: Exception) -> str:
    """The message for a variable that cannot be copied."""
    first = getattr(error, "elist", None) or [error]  # ipyparallel's error for several processes
    text = str(getattr(first[0], "evalue", None) or first[0])
    if isinstance(first[0], tuple):
        text = str(first[0][1])
    return f"`%%jax cluster --{option} {name}`: {(text.splitlines() or [''])[0]}."
