"""What pytest needs to run a file of PyTorch's device-generic tests on the CPU and on the jax device.

`instantiate_device_type_tests` makes one class for each device of a template class. torch finds the device `jax` by its
hooks, since it is the PrivateUse1 backend, and calls it by the name that its class got in `setUpClass`: the first
template of a file would be named otherwise than the rest, so `setUpClass` is called before the file is imported.

Indices are checked (`jaxtorch.config(check="indices")`), as on the CPU: torch's tests expect the errors.

The plugin writes a line of JSON for each test, when it starts and when it ends, so that the process that started this
one knows which test ended it. Tests that have a line already, from the process before, do not run again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.testing._internal.common_device_type import PrivateUse1TestBase

import jaxtorch

DEVICES = ("jax", "cpu")
RECORD = "JAXTORCH_TORCH_SUITE_RECORD"  # environment variable: the file that the lines go to

PrivateUse1TestBase.setUpClass()
torch.set_num_threads(1)


def identity(item: pytest.Item) -> tuple[str, str] | None:
    """The device of a test, and the name that it has in common with the test of the other device."""
    cls = getattr(item, "cls", None)
    device = getattr(cls, "device_type", "")
    if cls is None or device not in DEVICES:
        return None
    before, _, after = item.name.rpartition(f"_{device}")
    return device, f"{cls.__name__.removesuffix(device.upper())}.{before}{after}"


def _write(**line: str) -> None:
    with Path(os.environ[RECORD]).open("a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the two devices that have not run before."""
    lines = map(json.loads, Path(os.environ[RECORD]).read_text().splitlines())
    known = {(line["device"], line["test"]) for line in lines}
    kept = [item for item in items if (found := identity(item)) and found not in known]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


@pytest.fixture(scope="session", autouse=True)
def _indices() -> Iterator[None]:
    with jaxtorch.config(check="indices"):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note that the test starts."""
    found = identity(item)
    assert found is not None
    _write(device=found[0], test=found[1], outcome="started", message="")
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note how the test ended; a failure that its authors expect for the device does not count."""
    report = yield
    found = identity(item)
    assert found is not None
    if report.when == "call" or report.outcome != "passed":
        expected = report.outcome == "skipped" and hasattr(report, "wasxfail")
        outcome = "passed" if expected else report.outcome
        message = ""
        if report.outcome == "failed":
            crash = getattr(report.longrepr, "reprcrash", None)
            message = crash.message if crash is not None else str(report.longrepr)
        _write(device=found[0], test=found[1], outcome=outcome, message=message[:2000])
    return report
