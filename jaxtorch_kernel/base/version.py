"""The version of this package, as in pyproject.toml, and the versions that it supports."""

from __future__ import annotations

from importlib import metadata

__version__ = "0.1.0"


def supported(package: str) -> str:
    """The versions of a package that pyproject.toml allows, for `pip install`, such as "torch<3,>=2.13"."""
    requirements = metadata.requires("jaxtorch-kernel") or []
    return next(r for r in requirements if r.startswith((f"{package}<", f"{package}>")))
