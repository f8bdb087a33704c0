"""Every input that PyTorch's operator database says is wrong: the device raises the CPU's kind of exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.utils._pytree import tree_map_only

import jaxtorch

from .database import entries
from .gaps import GAPS
from .wrong_inputs import wrong_errors

WITH_ERRORS = [name for name, op in entries().items() if op.error_inputs_func is not None]
DECLARED = {name for name, kinds in GAPS.items() if "errors" in kinds}


@pytest.mark.parametrize("name", WITH_ERRORS)
def test_wrong_inputs_raise_as_on_the_cpu(name: str) -> None:
    _, wrong = wrong_errors(entries()[name])
    assert bool(wrong) == (name in DECLARED), wrong


def test_the_database_has_wrong_inputs() -> None:
    """Entries without any, such as those whose wrong inputs are only for cuda, pass the test above."""
    assert sum(wrong_errors(entries()[name])[0] > 0 for name in WITH_ERRORS[:20]) > 15


def test_few_differences_are_declared() -> None:
    assert set(WITH_ERRORS) >= DECLARED
    assert len(DECLARED) < 0.05 * len(WITH_ERRORS)


def test_wrong_values_raise_where_they_are_looked_at() -> None:
    with jaxtorch.config(check="indices"):
        for name in ("gather", "scatter", "scatter_add"):
            assert wrong_errors(entries()[name])[1] == []


def _on(device: str, tree: Any) -> Any:
    def move(t: torch.Tensor) -> torch.Tensor:
        return t.detach().to(device).requires_grad_(t.requires_grad)

    return tree_map_only(torch.Tensor, move, tree)


def _errors(call: Callable[[str], object]) -> list[str]:
    """What the call raises on the CPU and on the device, by kind."""
    errors = []
    for device in ("cpu", "jax"):
        try:
            call(device)
        except Exception as error:
            errors.append(type(error).__name__)
        else:
            errors.append("none")
    return errors


def test_modules_raise_as_on_the_cpu() -> None:
    """The wrong inputs of torch's `module_db`, when the module is made or when it runs."""
    count, wrong_ones = 0, []
    for info in module_db:
        if info.module_error_inputs_func is None:
            continue
        options = {"requires_grad": False, "training": True}
        for wrong in info.module_error_inputs_func(info, "cpu", torch.float32, **options):
            made = wrong.module_error_input.constructor_input
            given = wrong.module_error_input.forward_input

            def run(device: str, info: Any = info, made: Any = made, given: Any = given) -> None:
                module = info.module_cls(*made.args, **made.kwargs).to(device)
                module(*_on(device, given.args), **_on(device, given.kwargs))

            with jaxtorch.config(check="indices"):  # an index of an Embedding is among them
                cpu, jax = _errors(run)
            count += cpu != "none"
            if cpu != jax:
                wrong_ones.append((info.name, str(wrong.error_regex), cpu, jax))
    assert wrong_ones == []
    assert count > 20


def test_optimizers_raise_as_on_the_cpu() -> None:
    """The wrong inputs of torch's `optim_db`, when the optimizer is made or when it steps."""
    count, wrong_ones = 0, []
    for info in optim_db:
        if (
            info.optim_cls is torch.optim.SparseAdam
        ):  # its wrong inputs are sparse, which no device tensor is
            continue
        for wrong in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
            given = wrong.optimizer_error_input

            def run(device: str, info: Any = info, given: Any = given) -> None:
                params = given.params
                if params is None:
                    params = [torch.nn.Parameter(torch.zeros(2, 3))]
                info.optim_cls(_on(device, params), **given.kwargs).step()

            cpu, jax = _errors(run)
            count += cpu != "none"
            if cpu != jax:
                wrong_ones.append((info.name, str(wrong.error_regex), cpu, jax))
    assert wrong_ones == []
    assert count > 20
