"""The contents of an installation: each package of the source is listed in pyproject.toml, which installers read."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_package_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    expected = {
        ".".join([name, *path.parent.relative_to(ROOT / folder).parts])
        for name, folder in settings["package-dir"].items()
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert set(settings["packages"]) == expected
