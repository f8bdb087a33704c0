"""`make torch-suite`: PyTorch's device-generic tests on the device, without anything that the caller has to prepare."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.torch_suite", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu"},  # as other tests here set it
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Any]:
    """The command's output and its data, for a file that has a test of each kind."""
    file = tmp_path_factory.mktemp("suite") / "outcomes.json"
    process = _command(
        str(HERE / "device_generic.py"), "--timeout", "20", "--jobs", "1", "--json", str(file)
    )
    return process, json.loads(file.read_text())[0]


def _outcomes(data: Any, device: str) -> dict[str, str]:
    return {t["test"]: t["outcome"] for t in data["tests"] if t["device"] == device}


def test_the_framework_knows_the_device(ran: tuple[Any, Any]) -> None:
    data = ran[1]
    assert data["problem"] == ""
    jax, cpu = (
        {n: o for n, o in _outcomes(data, d).items() if n.startswith("TestFramework.")}
        for d in ("jax", "cpu")
    )
    names = {n for n in jax if jax[n] == "skipped"}
    assert names == {
        f"TestFramework.test_{n}" for n in ("two_devices", "not_privateuse1", "cpu", "cuda")
    }
    assert set(jax.values()) == {"passed", "skipped"}
    assert {n for n in cpu if cpu[n] == "skipped"} == {
        f"TestFramework.test_{n}" for n in ("two_devices", "privateuse1", "accelerator", "cuda")
    }
    # A test for each dtype and operator: all of the CPU's, except the dtype that is not for this device.
    assert set(cpu) - set(jax) == {"TestFramework.test_dtypes_of_the_device_float64"}
    assert {
        "TestFramework.test_operators_add_float32",
        "TestFramework.test_parametrized_size_3_int64",
    } <= set(jax)


def test_failures_are_told_apart(ran: tuple[Any, Any]) -> None:
    process, data = ran
    messages = {t["test"]: t["message"] for t in data["tests"] if t["outcome"] == "failed"}
    jax, cpu = _outcomes(data, "jax"), _outcomes(data, "cpu")
    assert not any("OfNoDevice" in name for name in jax | cpu)
    ways = {"fails_on_jax", "fails_on_both", "ends_the_process_on_jax", "hangs_on_jax"}
    assert {n for n, o in jax.items() if o == "failed"} == {f"TestOutcomes.test_{w}" for w in ways}
    assert {n for n, o in cpu.items() if o == "failed"} == {"TestOutcomes.test_fails_on_both"}
    assert jax["TestOutcomes.test_runs_after_those"] == "passed"
    assert messages["TestOutcomes.test_ends_the_process_on_jax"].startswith(
        "its process ended with 3"
    )
    assert messages["TestOutcomes.test_hangs_on_jax"] == "it took longer than 20 s"

    def count(outcomes: dict[str, str]) -> list[str]:
        values = list(outcomes.values())
        return [str(values.count(o)) for o in ("passed", "failed", "skipped")]

    row = next(r for r in process.stdout.splitlines() if r.startswith("device_generic.py"))
    assert row.split()[1:] == [*count(jax), *count(cpu), "3"]
    alone = process.stdout.partition("failed on jax, passed on the CPU")[2]
    assert "test_fails_on_jax" in alone
    assert "test_fails_on_both" not in alone
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [("import torch_of_another_planet\n", "torch_of_another_planet"), (None, "no such file")],
)
def test_a_file_that_cannot_run_is_said(tmp_path: Path, content: str | None, said: str) -> None:
    file = tmp_path / "test_x.py"
    if content is not None:
        file.write_text(content)
    process = _command(str(file))
    assert process.returncode != 0
    assert said in process.stdout + process.stderr
