"""A sample of the conformance checks for every run: every fifteenth entry, and those that broke before."""

from __future__ import annotations

import pytest

from .checks import KINDS, check, entries
from .gaps import GAPS

ALWAYS = [
    "add",
    "nn.functional.conv2d",
    "nn.functional.scaled_dot_product_attention",
    "index_put",
    "linalg.svd",
]
NAMES = sorted({*list(entries())[::15], *ALWAYS})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_entry(name: str, kind: str) -> None:
    outcome = check(name, kind)
    if kind in GAPS.get(name, {}):
        assert outcome.status == "fail", f"a declared gap passes: take {name} [{kind}] off the list"
    else:
        assert outcome.status != "fail", outcome.error


def test_the_gaps_are_entries() -> None:
    unknown = set(GAPS) - set(entries())
    assert not unknown
    for name, kinds in GAPS.items():
        assert set(kinds) <= set(KINDS), name
