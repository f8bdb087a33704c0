"""What XLA simplifies in captured code and in windows: docs/differences.md, "What XLA simplifies"."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from ..deferred import modes
from .doors import DOORS
from .doors import captured as captured

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"

# By the code in the page's line: the same in JAX, an example, its value in captured code, alone, and in a window.
LINES: dict[str, tuple[Callable[[Any], Any], float, float, float, float]] = {
    "x.exp().log()": (lambda x: jnp.log(jnp.exp(x)), 100.0, 100.0, np.inf, 100.0),
    "x.exp() * (-x).exp()": (lambda x: jnp.exp(x) * jnp.exp(-x), 200.0, 1.0, np.nan, 1.0),
    "x * 1e38 * 10": (lambda x: x * 1e38 * 10, 0.0, np.nan, 0.0, 0.0),
    "torch.zeros(3) + x": (lambda x: jnp.zeros(3) + x, -0.0, -0.0, 0.0, 0.0),
}


def torchs(code: str, device: str = "jax") -> Callable[[torch.Tensor], torch.Tensor]:
    namespace: dict[str, Any] = {"torch": torch}
    code = code.replace("zeros(3)", f"zeros(3, device={device!r})")
    exec(f"def f(x): return ({code})", namespace)
    function: Callable[[torch.Tensor], torch.Tensor] = namespace["f"]
    return function


def assert_is(result: torch.Tensor, expected: float) -> None:
    """Equal, with the sign of a zero."""
    np.testing.assert_equal(result.cpu().numpy(), np.full(3, expected, np.float32))
    if expected == 0:
        assert torch.signbit(result.cpu()).tolist() == [bool(np.signbit(expected))] * 3


@pytest.mark.parametrize("code", LINES)
@pytest.mark.parametrize("captured", [door for door in DOORS if door != "eager"], indirect=True)
def test_captured_code_computes_as_jax_does(captured: Any, code: str) -> None:
    in_jax, example, expected, _, _ = LINES[code]
    theirs = torch.from_numpy(np.array(jax.jit(in_jax)(jnp.full(3, example))))
    assert_is(theirs, expected)
    assert_is(captured(torchs(code))(torch.full((3,), example, device="jax")), expected)


@pytest.mark.parametrize("code", LINES)
def test_calls_of_their_own_compute_as_the_cpu_does(code: str) -> None:
    _, example, _, expected, _ = LINES[code]
    assert_is(torchs(code)(torch.full((3,), example, device="jax")), expected)
    assert_is(torchs(code, "cpu")(torch.full((3,), example)), expected)


@pytest.mark.parametrize("code", LINES)
def test_a_window_computes_as_the_page_says(code: str) -> None:
    _, example, _, _, expected = LINES[code]
    x = torch.full((3,), example, device="jax")
    with modes.deferred("compiled"):
        result = torchs(code)(x)
        _ = [result + i for i in range(4)]  # a window of few calls is not compiled
        assert_is(result, expected)


def test_the_page_has_these_lines() -> None:
    section = PAGE.read_text().partition("## What XLA simplifies")[2].partition("\n## ")[0]
    lines = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert lines == list(LINES)
