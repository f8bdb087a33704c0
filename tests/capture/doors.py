"""The front doors to captured code: one function of a tensor, through each of them and without capture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

import jaxtorch

Function = Callable[[torch.Tensor], torch.Tensor]


def of_a_cell(magic: str) -> Callable[[Function], Function]:
    def captured(function: Function) -> Function:
        shell = InteractiveShell.instance()

        def run(x: torch.Tensor) -> torch.Tensor:
            shell.user_ns.update(function=function, x=x)
            shell.run_cell(f"%%{magic} -q\nresult = function(x)").raise_error()
            result: torch.Tensor = shell.user_ns["result"]
            return result

        return run

    return captured


DOORS: dict[str, Callable[[Function], Function]] = {
    "%%pure": of_a_cell("pure"),
    "%%jit": of_a_cell("jit"),
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
    "torch.compile": lambda function: torch.compile(function, backend="jax"),
    "eager": lambda function: function,
}


@pytest.fixture
def captured(request: Any) -> Iterator[Callable[[Function], Function]]:
    door = request.param
    if door.startswith("%%"):
        shell = InteractiveShell.instance()
        shell.run_line_magic("load_ext", "jaxtorch")
        yield DOORS[door]
        shell.run_line_magic("unload_ext", "jaxtorch")
        InteractiveShell.clear_instance()
    else:
        yield DOORS[door]
