"""When recording pauses and resumes, and what is compiled in the background."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

import jaxtorch
from jaxtorch.deferred.switch import switch
from jaxtorch.programs import stats


@pytest.fixture(autouse=True)
def deferred() -> Iterator[None]:
    torch.ones(1, device="jax")  # the device follows the option from its first use on
    switch.recorder.clear_cache()
    jaxtorch.config.update(execution="deferred")
    yield
    jaxtorch.config.update(execution="immediate")


def adversarial(rounds: int) -> None:
    """Each value is read at once, in sequences that never repeat."""
    x = torch.ones(3, device="jax")
    for i in range(rounds):
        for _ in range(i % 7):
            x = x * 1.0
        x = x + torch.full((3,), float(i), device="jax")
        x.sum().item()
        y = torch.ones(i + 1, device="jax") + 1
        (y * y).sum().item()


@pytest.mark.slow
def test_recording_pauses_where_nothing_repeats_and_resumes_later() -> None:
    assert switch.on
    adversarial(60)
    assert not switch.on, "most windows were new"
    assert jaxtorch.config.execution == "deferred"
    switch.boundary()
    assert switch.on
    adversarial(60)
    assert not switch.on
    switch.boundary()
    assert not switch.on, "the second pause is longer"
    switch.boundary()
    assert switch.on


def test_a_loop_that_repeats_does_not_pause() -> None:
    x = torch.ones(3, device="jax")
    for _ in range(100):
        y = x
        for _ in range(5):
            y = (y * 2).sin()
        y.sum().item()
    assert switch.on


def test_a_new_request_forgets_the_losses_before() -> None:
    x = torch.ones(3, device="jax")
    for _ in range(2):
        for _ in range(2):  # recording pauses after three windows that gain nothing
            (x * 2).sum().item()
        assert switch.on
        jaxtorch.config.update(execution="immediate")
        jaxtorch.config.update(execution="deferred")


def test_short_windows_pause() -> None:
    x = torch.ones(3, device="jax")
    for _ in range(100):
        (x * 2).sum().item()
    assert not switch.on, "two calls in a window gain nothing"


def test_it_takes_few_rounds_to_pause() -> None:
    x = torch.ones(3, device="jax")
    rounds = 0
    while switch.on and rounds < 100:
        (x * 2).sum().item()
        rounds += 1
    assert rounds <= 6


def test_a_step_whose_values_are_logged_does_not_pause() -> None:
    x = torch.ones(3, device="jax")
    for _ in range(20):
        y = x
        for _ in range(50):
            y = (y * 2).sin()
        for factor in range(8):
            (y * factor).sum().item()
        switch.boundary()
    assert switch.on, "the long window gains more than the short ones cost"


def test_a_thread_compiles_while_the_loop_goes_on() -> None:
    x = torch.ones(3, device="jax")
    switch.policy.worker.wait()
    before = len(stats.compiled)
    for _ in range(3):
        y = ((x * 2).sin() + 1).cos()
        switch.boundary()
    switch.policy.worker.wait()
    names = [record.name for record in stats.compiled[before:]]
    assert sum("deferred" in name for name in names) == 1
    y = ((x * 2).sin() + 1).cos()
    switch.boundary()
    record = next(r for r in stats.compiled[before:] if "deferred" in r.name)
    assert record.calls == 1
    torch.testing.assert_close(y.cpu(), ((torch.ones(3) * 2).sin() + 1).cos())


def test_what_forgets_programs_forgets_windows() -> None:
    from jaxtorch.dispatch.operation import forget_programs

    x = torch.ones(3, device="jax")
    (x + 1).sin().cpu()
    assert switch.recorder.root.next
    forget_programs()
    assert not switch.recorder.root.next


def test_the_option_is_checked() -> None:
    with pytest.raises(ValueError, match="execution must be one of 'immediate', 'deferred'"):
        jaxtorch.config.update(execution="lazy")


AT_EXIT = """
import time, torch, jaxtorch
from jaxtorch.deferred.plan import Plan
from jaxtorch.deferred.switch import switch

def compile(self):
    while not switch.policy.worker.closing:
        time.sleep(0.01)
    print("compiled", flush=True)

Plan.compile = compile
jaxtorch.config.update(execution="deferred")
x = torch.ones(3, device="jax")
for window in (lambda: x.sin().cos().sin().cos(), lambda: x.exp().sin().exp().sin()):
    for _ in range(3):
        y = window()
        switch.boundary()
"""


def test_the_interpreter_does_not_wait_for_windows_that_are_queued() -> None:
    run = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["compiled"], "only the one that had begun"
