"""`python -m jaxtorch.stubs`: mypy and pyright know the names that jaxtorch adds, and know torch as before."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import torch

import jaxtorch
from jaxtorch import stubs

SAMPLE = {  # expression: its type, as either checker prints it
    "x.jax()": "Tensor",
    "x.jax('jax:0', non_blocking=True)": "Tensor",
    "x.is_jax": "bool",
    "torch.nn.Linear(2, 2).jax()": "Linear",
    "torch.nn.Linear(2, 2).jax(0)": "Linear",
    "torch.jax.memory_allocated()": "int",
    "torch.jax.Event(enable_timing=True).query()": "bool",
    "torch.jax.get_device_properties().total_memory": "int",
}
WRONG = (
    "x.jax(memory=1)",
    "x.is_jacks",
    "torch.jax.memory_allocate()",
    "torch.nn.Linear(2, 2).jax('a', 'b')",
)
HEAD = "import torch\nx = torch.zeros(2)\n"


def interpreter(folder: Path) -> Path:
    """A Python whose packages are this one's and jaxtorch; what is put beside them stays in `folder`."""
    venv.create(folder, with_pip=False)
    packages = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    roots = [sysconfig.get_path("purelib"), str(Path(jaxtorch.__file__).absolute().parents[1])]
    (packages / "installed.pth").write_text("\n".join(roots))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def with_stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = interpreter(tmp_path_factory.mktemp("with"))
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    stubs.write(packages)
    return python


@pytest.fixture(scope="module")
def without_stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return interpreter(tmp_path_factory.mktemp("without"))


def mypy(python: Path, code: str, folder: Path) -> dict[int, list[str]]:
    """What mypy says of each line."""
    (folder / "sample.py").write_text(code)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--python-executable",
        str(python),
        "--cache-dir",
        str(folder.parent / "mypy"),
    ]
    run = subprocess.run(
        [*command, "--config-file", "", "sample.py"], cwd=folder, capture_output=True, text=True
    )
    found: dict[int, list[str]] = {}
    for number, text in re.findall(r"^sample\.py:(\d+): (.*)$", run.stdout, re.MULTILINE):
        found.setdefault(int(number), []).append(text)
    assert found, run.stdout + run.stderr
    return found


def pyright(python: Path, code: str, folder: Path) -> dict[int, list[str]]:
    """What pyright says of each line."""
    pytest.importorskip("pyright")
    (folder / "sample.py").write_text(code)
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--outputjson",
        "--pythonpath",
        str(python),
        "sample.py",
    ]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    found: dict[int, list[str]] = {}
    for entry in json.loads(run.stdout)["generalDiagnostics"]:
        line = entry["range"]["start"]["line"] + 1
        found.setdefault(line, []).append(f"{entry['severity']}: {entry['message']}")
    return found


CHECKERS = pytest.mark.parametrize("checker", [pytest.param(mypy, marks=pytest.mark.slow), pyright])


def revealed(expressions: list[str]) -> str:
    return HEAD + "".join(f"reveal_type({e})\n" for e in expressions)


def short(texts: list[str]) -> str:
    """The type in a checker's answer, without the modules of its names."""
    return re.sub(r"\b\w+\.", "", re.findall(r'[tT]ype (?:of .* )?is "(.*)"', " ".join(texts))[0])


@CHECKERS
def test_names_are_known(checker, with_stubs: Path, tmp_path: Path) -> None:
    said = checker(with_stubs, revealed(list(SAMPLE)), tmp_path)
    assert {e: short(said[i]) for i, e in enumerate(SAMPLE, 3)} == SAMPLE
    assert "error" not in str(said)


@CHECKERS
def test_wrong_uses_are_errors(checker, with_stubs: Path, tmp_path: Path) -> None:
    said = checker(with_stubs, HEAD + "\n".join(WRONG), tmp_path)
    assert [i for i in said if any("error" in text for text in said[i])] == list(
        range(3, 3 + len(WRONG))
    )


def test_without_the_stubs_they_are_errors(without_stubs: Path, tmp_path: Path) -> None:
    said = pyright(without_stubs, revealed(list(SAMPLE)), tmp_path)
    assert len([texts for texts in said.values() if "error" in str(texts)]) == len(SAMPLE)


def test_every_name_of_torch_jax_is_known(with_stubs: Path, tmp_path: Path) -> None:
    names = [f"torch.jax.{name}" for name in torch.jax.__all__]
    said = pyright(with_stubs, revealed(names), tmp_path)
    assert [
        n for i, n in enumerate(names, 3) if "Unknown" in str(said[i]) or "error" in str(said[i])
    ] == []


@pytest.mark.slow
def test_torch_itself_is_known_as_before(
    with_stubs: Path, without_stubs: Path, tmp_path: Path
) -> None:
    names = [f"torch.{name}" for name in dir(torch) if name[0] != "_" and name != "jax"]
    names += [f"torch.Tensor.{name}" for name in dir(torch.Tensor) if name not in ("jax", "is_jax")]
    names += ["torch.nn.Linear(2, 2)", "torch.nn.functional.relu(x)", "torch.return_types.max"]
    names += [
        f"torch.nn.Module.{name}"
        for name in dir(torch.nn.Module)
        if name[0] != "_" and name != "jax"
    ]
    before, after = (pyright(p, revealed(names), tmp_path) for p in (without_stubs, with_stubs))
    # A stub says less of the types of defaults and of what no annotation gives.
    changed = {
        n: (before[i], after[i]) for i, n in enumerate(names, 3) if before.get(i) != after.get(i)
    }
    assert {n for n in changed if not n.startswith("torch.nn.Module.")} == set()
    assert len(before) > 1000
    assert {n: said for n, said in changed.items() if "error" in str(said[1])} == {}


def test_the_command_writes_and_removes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jaxtorch.stubs", "--into", str(tmp_path)]
    assert (
        "torch-stubs" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    assert (tmp_path / stubs.NAME / "py.typed").read_text() == "partial\n"
    subprocess.run([*command, "--remove"], check=True)
    assert list(tmp_path.iterdir()) == []
