"""The wheel, in an environment that has its dependencies and nothing else: `make wheel`."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from scripts import wheel as wheels


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.install(wheel, tmp_path_factory.mktemp("environment"))


def run(python: Path, folder: Path, *arguments: str) -> str:
    """Run the environment's Python in an empty folder, without this repository on its path; what it printed."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    # Jupyter finds its own files, such as kernels, beside this Python first.
    kept |= {"JUPYTER_PREFER_ENV_PATH": "0", "IPYTHONDIR": str(folder / "ipython")}
    done = subprocess.run(
        [str(python), *arguments], cwd=folder, env=kept, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_holds_every_file_of_the_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("jaxtorch/")}
    expected = {"jaxtorch/py.typed"}
    for folder, package in (
        ("jaxtorch_kernel", ""),
        ("magics", "magics/"),
        ("widgets", "widgets/"),
    ):
        top = wheels.ROOT / folder
        files = [f for f in top.rglob("*") if f.is_file() and "js" not in f.relative_to(top).parts]
        files = [f for f in files if "__pycache__" not in f.parts and f.name != ".DS_Store"]
        expected |= {f"jaxtorch/{package}{f.relative_to(top)}" for f in files}
    assert held == expected


def test_the_device_is_there_without_an_import(python: Path, tmp_path: Path) -> None:
    program = """
import torch
x = torch.ones(2, device="jax", requires_grad=True)
(x * 3).sum().backward()
import jaxtorch
print(x.grad.tolist(), jaxtorch.__file__)
print(jaxtorch.pure(lambda x: x + 1)(x).tolist())
"""
    first, second = run(python, tmp_path, "-c", program).splitlines()
    assert first == f"[3.0, 3.0] {python.parents[1]}/lib/{first.partition('/lib/')[2]}"
    assert second == "[2.0, 2.0]"


def test_the_magics_and_the_views_bundle(python: Path, tmp_path: Path) -> None:
    program = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell()
shell.run_line_magic("load_ext", "jaxtorch")
shell.run_line_magic("jax", "on")
shell.run_cell("import torch; x = torch.ones(3)")
shell.run_cell_magic("pure", "", "y = x.sin()")
print(shell.user_ns["y"].device, type(shell.run_line_magic("jax", "cache")).__name__)
import anywidget
from jaxtorch.widgets import live
for name in ("shell.js", "views.js"):
    print(name, len((live._STATIC / name).read_bytes()))
print(shell.run_line_magic("jax", "cache").html()[:60])
"""
    out = run(python, tmp_path, "-c", program)
    assert "jax:0 CacheView" in out
    for name in ("shell.js", "views.js"):
        assert f"{name} {(wheels.ROOT / 'widgets' / 'static' / name).stat().st_size}" in out


def test_the_first_notebook_runs(python: Path, tmp_path: Path) -> None:
    (tmp_path / "01.ipynb").write_text(
        (wheels.ROOT / "notebooks" / "01_the_jax_device.ipynb").read_text()
    )
    out = run(python, tmp_path, str(wheels.ROOT / "scripts" / "demo.py"), "01.ipynb", "page")
    assert "Test accuracy: " in out
    assert (tmp_path / "page" / "01.html").stat().st_size > 10_000


def test_the_environment_has_nothing_else(python: Path, tmp_path: Path) -> None:
    program = """
import importlib.util, json, sys
print(json.dumps([sys.path, bool(importlib.util.find_spec("pytest"))]))
"""
    path, has_pytest = json.loads(run(python, tmp_path, "-c", program))
    assert not [folder for folder in path if ".venv" in folder or str(wheels.ROOT) in folder]
    assert not has_pytest
