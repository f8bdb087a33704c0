"""The advice of a fit report for programs that do not fit, by what takes their memory."""

from __future__ import annotations

import pytest

from jaxtorch.base.units import size
from jaxtorch.insight.fit.findings import findings
from jaxtorch.insight.fit.memory import Kind, KindMemory
from jaxtorch.insight.fit.report import Fit

GIB = 2**30


def advice(**gibibytes: int) -> str:
    memory = [KindMemory(_kind(name), count * GIB) for name, count in gibibytes.items()]
    used = sum(row.bytes for row in memory)
    report = Fit("v5e:1x1", None, 1, used <= 16 * GIB, 16 * GIB, used, tuple(memory))
    return " ".join(findings(report))


def _kind(name: str) -> Kind:
    kind: Kind = name.replace("_", " ")  # type: ignore[assignment]  # the names below are kinds
    return kind


@pytest.mark.parametrize(
    ("gibibytes", "words"),
    [
        ({"parameters": 20}, "Parameters alone take 20.0 GiB. Shard the parameters"),
        (
            {"parameters": 6, "optimizer_state": 12, "temporaries": 27},
            "Parameters and optimizer state alone take 18.0 GiB. Shard the parameters",
        ),
        (
            {"parameters": 5, "gradients": 5, "optimizer_state": 10, "activations": 1},
            "Parameters, gradients and optimizer state alone take 20.0 GiB",
        ),
    ],
)
def test_weights_that_exceed_the_chip_are_sharded(gibibytes: dict[str, int], words: str) -> None:
    """Recomputing activations, the advice for the largest part, would not make such a program fit."""
    text = advice(**gibibytes)
    assert words in text
    assert "checkpoint" not in text
    assert f"It needs {size((sum(gibibytes.values()) - 16) * GIB)} more than there is" in text


@pytest.mark.parametrize(
    ("gibibytes", "words"),
    [
        ({"parameters": 2, "optimizer_state": 4, "activations": 30}, "torch.utils.checkpoint"),
        ({"parameters": 2, "temporaries": 30}, "torch.utils.checkpoint"),
        ({"parameters": 10, "inputs": 12}, "shard the inputs"),
        ({"parameters": 12, "activations": 8}, "shard the parameters"),
    ],
)
def test_else_the_largest_part_is_advised_about(gibibytes: dict[str, int], words: str) -> None:
    text = advice(**gibibytes)
    assert words in text
    assert "alone take" not in text


def test_what_fits_is_not_advised_to_shrink() -> None:
    assert "more than there is" not in advice(parameters=4, activations=8)
