"""A size that no memory holds is an error in every operator; it does not end the process, as it does in XLA."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import torch

import jaxtorch
from jaxtorch.operators.dynamic import positions

from .sizes import CASES, WITHOUT_ORACLE

_ROOT = Path(__file__).parents[2]


def test_a_size_that_no_memory_holds_is_an_error() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.dispatch.sizes"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path])},
    )
    expected = [f"{name}: RuntimeError, RuntimeError" for name in CASES]
    expected += [f"{name}: RuntimeError" for name in WITHOUT_ORACLE]
    assert done.stdout.splitlines() == [*expected, "[2.0, 2.0]"], done.stderr[-2000:]
    assert done.returncode == 0


@pytest.mark.parametrize("make", [torch.empty, torch.randn, torch.ones])
def test_the_error_is_torchs(make: object) -> None:
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError, match=r"Storage size calculation overflowed with sizes"):
            make(2**62, device=device)  # type: ignore[operator]  # the type is that of all parameters


def test_no_program_is_kept_of_a_size_that_was_refused() -> None:
    f = jaxtorch.pure(lambda x, n: (x.expand(n) * 2).sum())
    x = torch.ones(1, device="jax")
    with pytest.raises(RuntimeError, match="Storage size"):
        f(x, 2**62)
    assert f(x, 3).item() == 6


@pytest.mark.parametrize(("size", "dtype"), [(2**31 - 1, np.int32), (2**31, np.int64)])
def test_positions_are_counted_in_a_dtype_that_holds_them(size: int, dtype: type) -> None:
    with jax.enable_x64(True):
        found = jax.eval_shape(lambda m: positions(m, 4), jax.ShapeDtypeStruct((size,), bool))
    assert found.dtype == dtype
