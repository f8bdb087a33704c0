"""The table of TPU chips: its sources, and what libtpu itself says about each chip."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from jax.sharding import PartitionSpec as P

import jaxtorch
from jaxtorch.capture import tpu
from jaxtorch.capture.layouts import check_target
from jaxtorch.capture.tpu import CompileError, shared_compiler
from jaxtorch.capture.tpu_chips import chip_of
from tests.libtpu import needs_libtpu

_CHIPS = jaxtorch.targets()


def test_every_figure_has_a_source() -> None:
    for chip in _CHIPS:
        figures = [chip.hbm, *chip.flops.values(), chip.bandwidth, chip.ici]
        pages = [f.source for f in figures if f is not None]
        assert [p for p in pages if not p.startswith("https://")] == []
        assert "bfloat16" in chip.flops


def test_an_unknown_chip_is_refused_with_the_known_ones() -> None:
    with pytest.raises(LookupError, match=r"'v99'.*v5e"):
        chip_of("v99:2x2")


@needs_libtpu
def test_libtpu_knows_each_chip_as_the_table_does() -> None:
    def too_large(x: torch.Tensor) -> torch.Tensor:
        return x @ x.T

    rows = torch.empty(300_000, 30_000, device="meta")
    small = torch.empty(256, 256, device="meta")
    with shared_compiler():
        for chip in _CHIPS:
            one = re.sub(r"\d+(?=x|$)", "1", chip.topology.partition(":")[2])
            target = f"{chip.name}:{one}"
            program = jaxtorch.pure(too_large)
            assert program.lower(small, target=target).compile().device == chip.kind
            with pytest.raises(CompileError) as error:
                program.lower(rows, target=target).compile()
            found = re.search(r"exceeds available HBM \(([\d.]+)G\)", str(error.value))
            assert found is not None
            assert float(found[1]) == chip.available.value / 2**30
            devices = 4 * chip.devices
            several = jaxtorch.pure(torch.sin).lower(
                small, target=chip.topology, mesh={"a": devices}, shardings={"*": P("a")}
            )
            assert f"num_partitions={devices}" in several.compile().hlo


def test_the_version_of_libtpu_is_the_same_everywhere() -> None:
    """The code, the extra, the Makefile and the pages name one version."""
    root = Path(__file__).parents[2]
    files = ("pyproject.toml", "Makefile", "README.md", "docs/tpu_compiler.md")
    found = {v for f in files for v in re.findall(r"libtpu==([\d.]+\d)", (root / f).read_text())}
    assert found == {tpu._LIBTPU}


def test_the_examples_are_targets() -> None:
    for chip in _CHIPS:
        assert chip.topology in chip.examples
        for target in chip.examples:
            check_target(target)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("V5E:2x4", "'v5e'"),
        ("TPU7x:1x1x1", "'tpu7x'"),
        ("v5litepod:2x4", "'v5e'"),
        ("trillium:1x1", "'v6e'"),
        ("ironwood:1x1x1", "'tpu7x'"),
        ("v5e:2X4", "'v5e:2x4'"),
        ("v5e-8", "'v5e:2x4'"),
        ("v5p", "'v5p:2x2x1'"),
        (" v6e:1x1", "'v6e:1x1'"),
        ("v5e:01x1", "'v5e:1x1'"),
        ("v5e:１x1", "'v5e:1x1'"),
        ("v5e:3x3", "'v5e:4x4'"),
        ("v5e:32x32", "1024 chips: at most 256"),
        ("v5p:100x100x100", "at most 8960"),
        (3, "not 3"),
        (["v5e:1x1"], "such as 'v5e:1x1'"),
    ],
)
def test_a_wrong_target_teaches_the_right_one(target: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        check_target(target)
    assert "\n" not in str(error.value)
