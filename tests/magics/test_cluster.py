"""`%%jax cluster` in a real shell, with real processes. `make test` gives this file a process of its own.

The tests share a cluster, because its start takes seconds; their order is that of the file. The last ones end it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from jaxtorch.magics.cluster import processes, running
from jaxtorch.magics.cluster.processes import Cluster, Process, Wanted
from jaxtorch.magics.cluster.running import ClusterError
from jaxtorch.widgets.cluster import OutputsView, ProcessOutput

from ..widgets.pages import harmless
from .cells import pressing, run

SETUP = """%%jax cluster -n 2 --devices-per-process 2
import os, signal, time
import jax, torch
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
mesh = jax.make_mesh((4,), ("data",))
rows = NamedSharding(mesh, PartitionSpec("data"))
rank = jax.process_index()
x = jax.make_array_from_process_local_data(rows, np.arange(2.0) + 2 * rank)
total = jax.jit(lambda x: x.sum())
"""


@pytest.fixture(scope="module")
def shell() -> Iterator[Any]:
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell(config=config)
    shell.run_line_magic("load_ext", "jaxtorch")
    yield shell
    shell.run_line_magic("unload_ext", "jaxtorch")


@pytest.fixture
def there(shell: Any) -> Cluster:
    """The session's cluster, started if it does not run."""
    if processes.current() is None:
        run(shell, SETUP)
    cluster = processes.current()
    assert cluster is not None
    return cluster


def printed(shell: Any, capsys: Any, cell: str) -> str:
    capsys.readouterr()
    run(shell, cell)
    return str(capsys.readouterr().out)


def failing(shell: Any, capsys: Any, cell: str) -> tuple[BaseException, str]:
    """The error of a cell that fails, and what it shows before that."""
    capsys.readouterr()
    result = shell.run_cell(cell, store_history=False)
    assert not result.success
    error = result.error_in_exec
    shown = str(capsys.readouterr().out)
    return error, shown.removesuffix(f"{type(error).__name__}: {error}\n")  # IPython's own line


def blocks(text: str) -> dict[str, list[str]]:
    """The lines of each process, by its heading."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("── "):
            found[line.strip("─ ")] = lines = []
        elif found:
            lines.append(line)
    return found


def pids(cluster: Cluster) -> list[psutil.Process]:
    assert cluster.started is not None
    return processes._family(cluster.started)


def test_before_the_first_cell(shell: Any, capsys: Any) -> None:
    assert "No processes are running" in shell.run_line_magic("jax", "cluster").text()
    assert printed(shell, capsys, "%jax cluster --stop") == "No processes to end.\n"


def test_each_process_has_its_rank_and_its_variables(
    shell: Any, there: Cluster, capsys: Any
) -> None:
    cell = "%%jax cluster\nprint('rank', rank, os.environ['RANK'], os.environ['WORLD_SIZE'])\nrank * 10"
    shown = blocks(printed(shell, capsys, cell))
    assert [heading.split(" in ")[0] for heading in shown] == [
        "process 0 · done",
        "process 1 · done",
    ]
    assert list(shown.values()) == [["rank 0 0 2", "0"], ["rank 1 1 2", "10"]]
    hidden = blocks(printed(shell, capsys, "%%jax cluster\nrank * 10;"))
    assert list(hidden.values()) == [[], []]


def test_a_collective_runs_over_all_of_them(shell: Any, there: Cluster, capsys: Any) -> None:
    shown = blocks(printed(shell, capsys, "%%jax cluster\nprint(total(x), jax.device_count())"))
    assert list(shown.values()) == [["6.0 4"]] * 2


def test_the_line_shows_the_processes(shell: Any, there: Cluster) -> None:
    view = shell.run_line_magic("jax", "cluster")
    rows = view.page().sections[0].rows
    assert [(row.rank, row.pid, row.state) for row in rows] == [
        (p.rank, str(p.pid), "ready") for p in there.processes
    ]
    assert all(row.devices.startswith("2 × ") for row in rows)
    assert "2 processes on this machine" in view.text()


def test_a_magic_below_it_runs_in_the_processes(shell: Any, there: Cluster, capsys: Any) -> None:
    cell = "%%jax cluster\n%%pure -q\nthrice = torch.ones(2, device='jax') * 3"
    run(shell, cell)
    shown = printed(shell, capsys, "%%jax cluster\nthrice.tolist()")
    assert shown.count("[3.0, 3.0]") == 2


def test_a_failed_process_comes_first_with_its_line(
    shell: Any, there: Cluster, capsys: Any
) -> None:
    cell = "%%jax cluster\nprint('begun', rank)\nif rank == 1:\n    1 / 0"
    error, text = failing(shell, capsys, cell)
    assert isinstance(error, ClusterError)
    assert str(error) == "process 1: ZeroDivisionError: division by zero"
    shown = blocks(text)
    assert [heading.split(" in ")[0] for heading in shown] == [
        "process 1 · failed",
        "process 0 · done",
    ]
    lines, others = shown.values()
    assert others == ["begun 0"]
    assert lines[-1] == "begun 1"
    assert len(lines) < 12
    assert "----> 4     1 / 0" in lines
    assert "ipyparallel" not in text
    assert "\x1b" not in text


def test_all_that_fail_alike_are_one_line(shell: Any, there: Cluster, capsys: Any) -> None:
    error, text = failing(shell, capsys, "%%jax cluster\ndef f(:")
    assert str(error).startswith("processes 0, 1: CellError: the cell is not valid Python")
    assert "line 2: def f(:" in text
    error, _ = failing(shell, capsys, "%%jax cluster\nraise ValueError(rank)")
    assert str(error) == "process 0: ValueError: 0 (1 more failed with other errors)"


def test_variables_go_there_and_back(shell: Any, there: Cluster, capsys: Any) -> None:
    run(shell, "first = [1, 2]")
    _, text = failing(shell, capsys, "%%jax cluster\nfirst")
    assert "`%%jax cluster --push first` copies it" in text
    run(shell, "%%jax cluster --push first --pull second rank\nsecond = first + [rank]")
    assert shell.user_ns["second"] == [[1, 2, 0], [1, 2, 1]]
    assert shell.user_ns["rank"] == [0, 1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "-n 3",
            "2 processes on this machine are already running: end them with `%jax cluster --stop` first",
        ),
        ("--devices-per-process 4", "are already running"),
        ("--push nothing", "`%%jax cluster --push nothing`: there is no variable 'nothing'."),
        ("--pull nothing", "`%%jax cluster --pull nothing`: name 'nothing' is not defined."),
        ("--push lock", "`%%jax cluster --push lock`: cannot pickle"),
        ("--pull lock", "`%%jax cluster --pull lock`: "),
        ("--stop", "`%jax cluster --stop` is a line magic"),
        ("--nn 3", "has no option '--nn'"),
    ],
)
def test_a_mistake_is_one_line(shell: Any, there: Cluster, line: str, message: str) -> None:
    run(shell, "import threading\nlock = threading.Lock()")
    with pytest.raises(UsageError) as caught:
        shell.run_cell_magic("jax", f"cluster {line}", "import threading\nlock = threading.Lock()")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert processes.current() is there


@pytest.mark.parametrize(
    ("line", "cell", "message"),
    [
        ("cluster -n 0", "1", "-n must be at least 1"),
        ("cluster --devices-per-process 0", "1", "must be at least 1"),
        ("cluster --profile here -n 2", "1", "omit -n"),
        (
            "cluster --profile nobody_has_this",
            "1",
            "ipcluster start --n=4 --profile=nobody_has_this",
        ),
        ("cluster", " \n", "Nothing to run"),
    ],
)
def test_a_mistake_starts_nothing(
    shell: Any, monkeypatch: pytest.MonkeyPatch, line: str, cell: str, message: str
) -> None:
    monkeypatch.setattr(processes, "_current", [])
    with pytest.raises(UsageError) as caught:
        shell.run_cell_magic("jax", line, cell)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert processes.current() is None


def test_without_ipyparallel(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_current", [])
    monkeypatch.setitem(sys.modules, "ipyparallel", None)
    with pytest.raises(UsageError, match="%pip install ipyparallel") as caught:
        shell.run_cell_magic("jax", "cluster", "1")
    assert "\n" not in str(caught.value)


def test_the_page_has_them_side_by_side_and_no_script() -> None:
    evil = "<script>alert(1)</script>"
    outputs = [
        ProcessOutput(0, "done", 0.1, evil, evil, [{"text/plain": evil}]),
        ProcessOutput(1, "failed", 0.2, "", "", [], f"ValueError: {evil}", evil),
        ProcessOutput(
            2, "done", 0.3, "x" * 100_000, "", [{"image/png": "QUJD", "text/plain": evil}]
        ),
    ]
    page = OutputsView(outputs, [evil]).html()
    harmless(
        OutputsView(outputs[:2], [evil]).html()
    )  # without the picture, whose tag it does not allow
    assert evil not in page
    assert page.count("<img") == 1
    assert page.count("<td") == 3
    assert page.count("<tr") == 1
    assert page.index("process 1") < page.index("process 0")
    assert 'src="data:image/png;base64,QUJD"' in page
    assert len(page) < 40_000
    assert OutputsView([ProcessOutput(i) for i in range(6)]).html().count("<tr") == 2


def test_outputs_are_shown_while_the_cell_runs(shell: Any, there: Cluster) -> None:
    views: list[OutputsView] = []

    class Recorded:
        def say(self, line: str) -> None: ...

        def show(self, view: OutputsView) -> None:
            views.append(OutputsView([ProcessOutput(**vars(p)) for p in view.processes]))

        end = show

    body = "print('begun')\ntime.sleep(1)\nprint('over')"
    running.run(there, "cluster", body, 1, Recorded())
    during = [view for view in views[:-1] if "begun" in view.text()]
    assert during
    assert all("over" not in p.printed for p in during[0].processes)
    assert "2 processes: 0 done" in during[0].summary
    assert all(p.printed == "begun\nover\n" for p in views[-1].processes)


def test_ctrl_c_interrupts_all_and_keeps_them(shell: Any, there: Cluster, capsys: Any) -> None:
    capsys.readouterr()
    with pressing(1.0):
        result = shell.run_cell(
            "%%jax cluster\nfor i in range(600):\n    time.sleep(0.1)", store_history=False
        )
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert capsys.readouterr().out.count("· interrupted after") == 2
    shown = blocks(printed(shell, capsys, "%%jax cluster\nprint(0 < i < 100, total(x))"))
    assert list(shown.values()) == [["True 6.0"]] * 2
    assert processes.current() is there


def test_a_process_that_waits_for_a_failed_one_is_ended(
    shell: Any, there: Cluster, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "ALONE", 1.0)
    monkeypatch.setattr(running, "GRACE", 1.0)
    before = pids(there)
    cell = "%%jax cluster\nif rank == 1:\n    raise ValueError('bad')\ntotal(x).block_until_ready()"
    error, text = failing(shell, capsys, cell)
    assert str(error) == "process 1: ValueError: bad"
    assert "Process 0 did not finish within 1 s after process 1 had failed" in text
    assert "a collective waits for all processes" in text
    assert processes.current() is None
    assert not any(one.is_running() for one in before)
    again = printed(shell, capsys, "%%jax cluster\nimport jax; print(jax.device_count())")
    assert again.count("\n4\n") == 2  # as many processes, and as many devices in each


def test_a_process_that_ends_is_one_line(shell: Any, there: Cluster, capsys: Any) -> None:
    before = pids(there)
    cell = (
        "%%jax cluster\nimport jax, os, time\nif jax.process_index() == 1:\n    os.kill(os.getpid(), 9)\n"
        "time.sleep(100)"
    )
    error, text = failing(shell, capsys, cell)
    assert str(error) == "process 1: the process ended"
    assert text.splitlines()[0].startswith("Process 1 ended while the cell ran")
    assert "Traceback" not in text
    assert processes.current() is None
    assert not any(one.is_running() for one in before)


def test_one_that_ended_between_cells(
    shell: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        ids = (0,)

        def close(self) -> None: ...

    lost = Cluster(Client(), Wanted(2, None, "far"), processes=[
        Process(rank, rank, "host", 1, "1 × cpu") for rank in range(2)
    ])  # fmt: skip
    monkeypatch.setattr(processes, "_current", [lost])
    assert "ended" in shell.run_line_magic("jax", "cluster").text()
    begun: list[Wanted] = []

    def begin(wanted: Wanted, say: Any) -> Cluster:
        begun.append(wanted)
        raise UsageError("not in this test")

    monkeypatch.setattr(processes, "begin", begin)
    with pytest.raises(UsageError):
        shell.run_cell_magic("jax", "cluster", "1")
    assert begun == [Wanted()]
    assert capsys.readouterr().out.startswith(
        "Process 1 ended since the last cell. Their variables"
    )


def test_no_process_outlives_a_killed_session() -> None:
    """What `engine.watch` does in each process, with small processes in the place of a cluster's."""
    forever = [sys.executable, "-c", "import time; time.sleep(600)"]
    session, other = subprocess.Popen(forever), subprocess.Popen(forever)
    code = (
        "import time; from jaxtorch.magics.cluster import engine; "
        f"engine.watch({session.pid}, [{other.pid}]); print('watching', flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    engine = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert engine.stdout is not None
        assert engine.stdout.readline() == "watching\n"
        session.kill()
        session.wait()
        assert engine.wait(timeout=30) == -9
        assert other.wait(timeout=30) == -9
    finally:
        for one in (session, other, engine):
            one.kill()
            one.wait()


def test_unloading_ends_them(shell: Any, there: Cluster) -> None:
    before = pids(there)
    assert len(before) >= 3
    assert os.path.isdir(there.directory)
    shell.run_line_magic("unload_ext", "jaxtorch")
    assert processes.current() is None
    assert not any(one.is_running() for one in before)
    assert not os.path.exists(there.directory)
    shell.run_line_magic("load_ext", "jaxtorch")
