"""Build the wheel, and install it into an environment with only the packages that its metadata requires.

    python -m scripts.wheel build/wheel     # the wheel, into that folder

Nothing is downloaded: the environment gets links to installed packages, namely to the wheel's dependencies (with the
extra `lab`) and to theirs in turn. So a dependency that is missing from `pyproject.toml` is also missing there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
# The sources of a wheel. A copy is built, because setuptools leaves folders behind that a later build would pack.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "jaxtorch_kernel", "magics", "widgets")


def build(folder: Path) -> Path:
    """Build the wheel into a folder; returns its file."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    with tempfile.TemporaryDirectory() as copy:
        for name in SOURCES:
            source, target = ROOT / name, Path(copy) / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("js", "__pycache__"))
            else:
                shutil.copy(source, target)
        _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), copy)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path, extra: str = "lab") -> Path:
    """Make an environment with the wheel and its dependencies; returns its Python."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    _pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    (own,) = metadata.distributions(name="jaxtorch-kernel", path=[str(packages)])
    for distribution in needed(own, extra):
        _link(distribution, packages)
    return python


def needed(distribution: metadata.Distribution, extra: str) -> Iterator[metadata.Distribution]:
    """The distributions that one depends on, directly or not.

    Raises:
        PackageNotFoundError: one of them is not installed.
    """
    seen: set[tuple[str, str]] = set()
    todo = [(distribution, extra)]
    while todo:
        user, asked = todo.pop()
        for line in user.requires or []:
            requirement = Requirement(line)
            if requirement.marker and not requirement.marker.evaluate({"extra": asked}):
                continue
            for inner in sorted({"", *requirement.extras}):
                if (requirement.name, inner) not in seen:
                    seen.add((requirement.name, inner))
                    if requirement.name == distribution.metadata["Name"]:
                        todo.append(
                            (distribution, inner)
                        )  # an extra that names another one of the same package
                        continue
                    required = metadata.distribution(requirement.name)
                    todo.append((required, inner))
                    yield required


def _link(distribution: metadata.Distribution, packages: Path) -> None:
    """Link a distribution's files in `site-packages`, and its files for Jupyter, unless they exist already."""
    places = {file.parts[:1] for file in distribution.files or []} - {("..",), ("__pycache__",)}
    places |= {
        f.parts[:6] for f in distribution.files or [] if f.parts[3:5] == ("share", "jupyter")
    }
    for parts in places:
        source, target = (
            Path(str(distribution.locate_file(Path(*parts)))),
            packages.joinpath(*parts),
        )
        if source.exists() and source.suffix != ".pth" and not target.exists():
            target.resolve().parent.mkdir(parents=True, exist_ok=True)
            target.resolve().symlink_to(source.resolve())


def _pip(*arguments: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
    )
    if run.returncode:
        raise RuntimeError(f"pip {arguments[0]} failed:\n{run.stdout}{run.stderr}")


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
