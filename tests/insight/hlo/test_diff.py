"""Comparing programs: which lines are equal, which differ, and that the hunks cover all lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtorch.insight.hlo.diff import Diff, compare, matches
from jaxtorch.insight.hlo.listing import Listing, list_jaxpr, list_stablehlo

from .programs import array, optimized


def listing(function: Callable[..., Any], stage: str, *arguments: Any) -> Listing:
    if stage == "hlo":
        return optimized(function, *arguments)[2]
    traced = jax.jit(function).trace(*arguments)
    if stage == "jaxpr":
        return list_jaxpr(traced.jaxpr)
    return list_stablehlo(traced.lower().as_text(debug_info=True))


def changed(diff: Diff) -> tuple[list[str], list[str]]:
    """The lines that only one of them has."""
    removed = [diff.first.lines[i] for h in diff.hunks if not h.same for i in h.first]
    added = [diff.second.lines[i] for h in diff.hunks if not h.same for i in h.second]
    return removed, added


def one(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w) + jnp.sin(x) * 2


def more(x: jax.Array, w: jax.Array) -> jax.Array:
    x = jnp.exp(x)
    return jnp.tanh(x @ w) + jnp.sin(x) * 2


def swapped(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(w @ x) + jnp.sin(x) * 2


ARGUMENTS = array(8, 8), array(8, 8)
STAGES = ("jaxpr", "stablehlo", "hlo")


@pytest.mark.parametrize("stage", STAGES)
def test_the_hunks_cover_both_texts_in_order(stage: str) -> None:
    diff = compare(listing(one, stage, *ARGUMENTS), listing(more, stage, *ARGUMENTS))
    assert [i for h in diff.hunks for i in h.first] == list(range(len(diff.first.lines)))
    assert [j for h in diff.hunks for j in h.second] == list(range(len(diff.second.lines)))
    assert all(len(h.first) == len(h.second) for h in diff.hunks if h.same)


@pytest.mark.parametrize("stage", STAGES)
def test_a_program_does_not_differ_from_itself(stage: str) -> None:
    def renamed(x: jax.Array, w: jax.Array) -> jax.Array:

        return jnp.tanh(x @ w) + jnp.sin(x) * 2

    diff = compare(listing(one, stage, *ARGUMENTS), listing(renamed, stage, *ARGUMENTS))
    removed, added = changed(diff)
    assert all("module @" in line for line in [*removed, *added])


@pytest.mark.parametrize(
    ("stage", "word"), [("jaxpr", "= exp "), ("stablehlo", "exponential"), ("hlo", " exponential(")]
)
def test_an_operation_more_is_a_difference_and_the_numbers_after_it_are_none(
    stage: str, word: str
) -> None:
    first, second = listing(one, stage, *ARGUMENTS), listing(more, stage, *ARGUMENTS)
    removed, added = changed(compare(first, second))
    assert any(word in line for line in added)
    assert not any(word in line for line in removed)
    assert not any("tanh" in line for line in removed if "fusion" not in line)


@pytest.mark.parametrize("stage", STAGES)
def test_the_same_operation_on_other_operands_is_a_difference(stage: str) -> None:
    first, second = listing(one, stage, *ARGUMENTS), listing(swapped, stage, *ARGUMENTS)
    assert len(first.lines) == len(second.lines)
    removed, added = changed(compare(first, second))
    assert removed
    assert added


def test_numbers_and_the_order_of_keys_are_no_difference() -> None:
    first = (
        "HloModule jit_f, entry_computation_layout={(f32[2]{0})->f32[2]{0}}",
        "ENTRY %main.3 (p.1: f32[2]) -> f32[2] {",
        "  %p.1 = f32[2]{0} parameter(0)",
        '  %dot.7 = f32[2]{0} sine(%p.1), metadata={op_name="a"}, backend_config={"a":1,"b":{"c":"2","estimated":5}}',
        "  ROOT %add.9 = f32[2]{0} add(%dot.7, %p.1)",
        "}",
    )
    second = tuple(
        line.replace(".1", ".44")
        .replace(".7", "")
        .replace(".9", ".2")
        .replace("main.3", "main.8")
        .replace("jit_f", "jit_g")
        .replace('"a"}', '"other"}')
        .replace('{"a":1,"b":{"c":"2","estimated":5}}', '{"b":{"c":"2"},"a":1}')
        for line in first
    )
    assert first != second

    def diff_of(a: tuple[str, ...], b: tuple[str, ...]) -> Diff:
        return compare(Listing("hlo", a, ((),) * len(a)), Listing("hlo", b, ((),) * len(b)))

    assert diff_of(first, second).added == 0
    for old, new in (
        ("sine", "cosine"),
        ("f32[2]{0} add", "f64[2]{0} add"),
        ('"c":"2"', '"c":"3"'),
        ("add(%dot, %p.44)", "add(%p.44, %dot)"),
    ):
        other = tuple(line.replace(old, new) for line in second)
        assert other != second
        assert diff_of(first, other).added == 1, old


def test_texts_of_different_stages_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="jaxpr and a hlo"):
        compare(Listing("jaxpr", (), ()), Listing("hlo", (), ()))


def common(a: str, b: str) -> int:
    """The length of the longest common subsequence, by the table of all pairs."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = 0
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], before + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


@given(st.text("abc", max_size=30), st.text("abc", max_size=30))
def test_what_is_matched_is_equal_in_order_and_as_much_as_there_is(a: str, b: str) -> None:
    ranges = matches(a, b)
    assert ranges[-1] == (len(a), len(b), 0)
    assert all(a[i : i + size] == b[j : j + size] for i, j, size in ranges)
    ends = [(i + size, j + size) for i, j, size in ranges]
    assert all(i >= e and j >= f for (e, f), (i, j, _) in zip(ends, ranges[1:], strict=False))
    assert sum(size for *_, size in ranges) == common(a, b)


def test_programs_that_share_little_are_compared_too() -> None:
    first = [f"a{i}" for i in range(3000)] + ["same"]
    second = [f"b{i}" for i in range(3000)] + ["same"]
    assert matches(first, second) == [(3000, 3000, 1), (3001, 3001, 0)]


def test_empty_texts() -> None:
    assert compare(Listing("hlo", (), ()), Listing("hlo", (), ())).hunks == ()


def test_a_line_among_thousands_that_are_the_same() -> None:
    """Thirty thousand lines with few distinct ones: difflib finds no equal lines."""
    lines = []
    for i in range(6000):
        lines += [
            f"%fused.{i} (p: f32[8]) -> f32[8] {{",
            "  %p = f32[8]{0} parameter(0)",
            f"  ROOT %s.{i} = f32[8]{{0}} sine(%p)",
            "}",
            "",
        ]
    other = list(lines)
    other[12_002] = "  ROOT %s.2400 = f32[8]{0} cosine(%p)"
    diff = compare(
        Listing("hlo", tuple(lines), ((),) * len(lines)),
        Listing("hlo", tuple(other), ((),) * len(other)),
    )
    assert (diff.added, diff.removed) == (1, 1)
