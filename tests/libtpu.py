"""The TPU's compiler for tests: the one that `make` put into build/libtpu, or one that is installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jaxtorch.capture.tpu import CompileError, libtpu_folder

_BUILT = Path(__file__).parents[1] / "build" / "libtpu"


def missing() -> str:
    """Why nothing can be compiled for a TPU here; "" where it can."""
    if _BUILT.is_dir():
        os.environ.setdefault("JAXTORCH_LIBTPU", str(_BUILT))
    try:
        libtpu_folder()
    except CompileError as error:
        return str(error)
    return ""


needs_libtpu = pytest.mark.skipif(bool(missing()), reason=missing() or "libtpu is here")
