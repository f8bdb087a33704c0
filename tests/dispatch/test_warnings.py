"""Warnings are located at the user's line, and not at the line of jaxtorch that warns."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

from jaxtorch.programs import site

Tensor = torch.Tensor


def _resized(x: Tensor) -> object:
    return torch.add(x, 1, out=torch.zeros(5, device="jax"))


def _byte_mask(x: Tensor) -> object:
    return x[torch.ones(3, dtype=torch.uint8, device="jax")]


def _compiled(x: Tensor) -> object:
    return torch.compile(lambda y: y.mul_(2), backend="jax")(x.exp().requires_grad_() * 1)


def _in_a_backward_hook(x: Tensor) -> object:
    y = x.clone().requires_grad_()
    y.register_hook(lambda g: g[torch.ones(3, dtype=torch.uint8, device="jax")])
    return y.sum().backward()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (_resized, "was resized"),
        (_byte_mask, "torch.uint8"),
        (_compiled, "runs eagerly"),
        (_in_a_backward_hook, "torch.uint8"),
    ],
)
def test_a_warning_names_the_users_line(call: Callable[[Tensor], object], words: str) -> None:
    lines, first = inspect.getsourcelines(call)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call(torch.ones(3, device="jax"))
    (warning,) = [w for w in seen if words in str(w.message)]
    assert warning.filename == __file__
    assert first < warning.lineno < first + len(lines)


def test_a_fallback_warns_at_the_users_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtorch.dispatch.cpu.stats.count_fallback", lambda name: 1)  # the first
    x = torch.ones(3, device="jax")
    with (
        pytest.warns(UserWarning, match="is not implemented for the jax device") as seen,
        suppress(NotImplementedError),
    ):
        x.to_sparse()
    (warning,) = {(w.filename, w.lineno) for w in seen if "_to_sparse" in str(w.message)}
    assert warning == (__file__, _line() - 2)


def _line() -> int:
    frame: Any = inspect.currentframe()
    return frame.f_back.f_lineno


def test_a_line_warns_once() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            site.warn("a warning of this test")
    assert len(seen) == 1
