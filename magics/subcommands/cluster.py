"""`%%jax cluster`: run a cell in several processes; `%jax cluster`: show, start or end the processes."""

from __future__ import annotations

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from jaxtorch.widgets.cluster import ClusterView, ProcessRow

from ..cells import cell_number
from ..cluster import processes, running
from ..cluster.processes import Cluster, Wanted
from ..cluster.showing import Display, display_of
from .table import Invocation, subcommand


@subcommand(
    "cluster",
    argument("-n", type=int, metavar="N", help="number of processes, 2 by default"),
    argument(
        "--devices-per-process",
        type=int,
        metavar="K",
        help="number of CPU devices of each process, 1 by default",
    ),
    argument(
        "--profile",
        metavar="NAME",
        help="use the engines of a running ipyparallel cluster: its profile, or the path of its connection file",
    ),
    argument(
        "--push", nargs="+", default=[], metavar="NAME", help="copy variables to each process first"
    ),
    argument(
        "--pull",
        nargs="+",
        default=[],
        metavar="NAME",
        help="then set variables here to a list of the values in the processes",
    ),
    argument("--stop", action="store_true", help="end the processes"),
    example="cluster -n 4",
    help="run a cell in several processes, as %%jax cluster -n 4; on a line, show the processes",
    cell=True,
)
def cluster(call: Invocation) -> ClusterView | None:
    """Run the cell in each process; or show the processes, or end them."""
    options, names = call.arguments, call.shell.user_ns
    if options.stop:
        _stop(call)
        return None
    display = display_of(call.shell)
    wanted = Wanted(options.n, options.devices_per_process, options.profile)
    if call.cell is None:
        if wanted != Wanted():
            _there(wanted, display)
        return _view(processes.current())
    if not call.cell.strip():
        raise UsageError("Nothing to run: write the code below `%%jax cluster`.")
    for name in options.push:
        if name not in names:
            raise UsageError(f"`%%jax cluster --push {name}`: there is no variable {name!r}.")
    there = _there(wanted, display)
    if options.push:
        there.push({name: names[name] for name in options.push})
    running.run(there, call.line, call.cell, cell_number(call.shell), display, names)
    if options.pull:
        names.update(there.pull(options.pull))
    return None


def _stop(call: Invocation) -> None:
    if call.cell is not None:
        raise UsageError("`%jax cluster --stop` is a line magic: write it without a cell below it.")
    stopped = processes.stop()
    print("No processes to end." if stopped is None else f"Ended: {stopped}.")


def _there(wanted: Wanted, display: Display) -> Cluster:
    """The session's cluster; if there is none, or a process of it has ended, a new one."""
    there = processes.current()
    if there is not None and there.dead():
        print(f"{running.named(there.dead())} ended since the last cell. {running.LOST}")
        processes.stop()
        there = None
    if there is None:
        return processes.begin(wanted, display.say)
    if not wanted.fits(there.wanted):
        raise UsageError(
            f"{there} are already running: end them with `%jax cluster --stop` first, which discards their variables."
        )
    return there


def _view(there: Cluster | None) -> ClusterView:
    if there is None:
        return ClusterView(
            "No processes are running: `%%jax cluster -n 4` above a cell starts four.", ()
        )
    rows = [
        ProcessRow(
            id=p.rank,
            rank=p.rank,
            host=p.host,
            pid=str(p.pid),
            devices=p.devices,
            state="ready" if there.alive(p) else "ended",
        )
        for p in there.processes
    ]
    return ClusterView(str(there), rows)
