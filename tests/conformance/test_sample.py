"""A sample of the conformance checks: every fifteenth entry, and those that broke before; of these a third each run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jaxtorch.capture.tpu import shared_compiler
from tests.libtpu import missing

from .checks import check
from .database import KINDS, TPU, entries
from .gaps import GAPS

ALWAYS = [
    "add",
    "nn.functional.conv2d",
    "nn.functional.scaled_dot_product_attention",
    "index_put",
    "linalg.svd",
]
NAMES = sorted({*list(entries())[::15], *ALWAYS})


@pytest.fixture(scope="module", autouse=True)
def compiler() -> Iterator[None]:
    """One process of the TPU's compiler for all."""
    with shared_compiler():
        yield


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_entry(name: str, kind: str) -> None:
    if kind in TPU and (reason := missing()):
        pytest.skip(reason)
    outcome = check(name, kind)
    if kind in GAPS.get(name, {}):
        assert outcome.status in ("fail", "values"), (
            f"a declared gap passes: take {name} [{kind}] off the list"
        )
    else:
        assert outcome.status in ("pass", "none"), outcome.error


def test_the_gaps_are_entries() -> None:
    unknown = set(GAPS) - set(entries())
    assert not unknown
    for name, kinds in GAPS.items():
        assert set(kinds) <= set(KINDS), name
