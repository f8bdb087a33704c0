"""Several real processes: parts and wholes, reading, training, and the death of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sharding.processes._launch import launch, succeed


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_together_do_what_one_does(size: int) -> None:
    for output in succeed(launch("together", size)):
        assert "checked" in output


@pytest.mark.parametrize(
    ("how", "size", "code", "news"),
    [
        ("killed", 3, -9, "process 2 of 3 was killed or crashed"),
        ("raises", 2, 1, "process 1 of 2 failed with ValueError: a mistake"),
    ],
)
def test_all_end_when_one_dies(how: str, size: int, code: int, news: str) -> None:
    *others, dead = launch("dying", size, how)
    assert dead.code == code
    assert ("ValueError: a mistake" in dead.output) == (how == "raises")
    for rank, other in enumerate(others):
        assert other.code == 1
        assert other.seconds < 30 + dead.seconds
        lines = [
            line for line in other.output.splitlines() if not line.startswith(("[Gloo]", "sum"))
        ]
        assert len(lines) == 1, other.output
        assert lines[0].startswith(f"jaxtorch: {news}. Process {rank} exits too")


@pytest.mark.parametrize("how", ["shutdown", "exit"])
def test_no_thread_watches_the_others_when_the_interpreter_ends(how: str) -> None:
    """Python would end it by force, which once ended a process whose work was done with SIGABRT."""
    for output in succeed(launch("leaving", 2, how, 1)):
        lines = [line for line in output.splitlines() if line.startswith("left")]
        assert lines
        assert "jaxtorch-peers" not in " ".join(lines)


def losses(output: str) -> dict[int, float]:
    """The losses that a process printed, by step."""
    lines = [line.split() for line in output.splitlines() if line.startswith("loss ")]
    return {int(step): float(loss) for _, step, loss in lines}


@pytest.mark.slow
def test_a_run_that_was_killed_resumes_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = losses(succeed(launch("resuming", 2, tmp_path / "whole", 8, 0))[0])
    assert sorted(whole) == list(range(1, 9))
    killed = tmp_path / "killed"
    before, dead = launch("resuming", 2, killed, 6, 5)
    assert dead.code == -9
    assert before.code == 1
    output = succeed(launch("resuming", 2, killed, 6, 0))[0]
    assert "resumed 4" in output
    assert losses(output) == {5: whole[5], 6: whole[6]}
    output = succeed(launch("resuming", 4, killed, 8, 0))[0]  # on more processes
    assert "resumed 6" in output
    assert losses(output) == pytest.approx({7: whole[7], 8: whole[8]}, rel=1e-5)
