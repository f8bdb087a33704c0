"""A Pallas kernel of a cell that a TPU cannot have."""

from __future__ import annotations

from typing import Any

import pytest

from jaxtorch.capture.tpu import CompileError
from tests.libtpu import needs_libtpu


@needs_libtpu
def test_a_rejected_kernel_of_a_cell_names_the_cell(shell: Any) -> None:
    shell.run_cell(
        "import jax, torch, jaxtorch\n"
        "from jax.experimental import pallas as pl\n"
        "def reversed_rows(x, o):\n"
        "    o[...] = x[...][::-1]\n"
        "def kernel(a):\n"
        "    return pl.pallas_call(reversed_rows, jax.ShapeDtypeStruct(a.shape, a.dtype))(a)\n"
        "lowered = jaxtorch.pure(lambda x: jaxtorch.call_jax(kernel, x)).lower(\n"
        "    torch.ones(8, 128, device='jax'), target='v5e:1x1')\n",
        store_history=True,
    )
    number = shell.execution_count - 1
    with pytest.raises(CompileError, match=rf"^Cell In\[{number}\], line 4: the program cannot"):
        shell.user_ns["lowered"].compile()
