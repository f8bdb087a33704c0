"""Trip counts from simulated counters, against XLA's counts and by construction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax import lax

import jaxtorch
from jaxtorch.insight.hlo.costs import Costs
from jaxtorch.insight.hlo.module import Instruction, Module
from jaxtorch.insight.hlo.trips import Trips
from tests.libtpu import needs_libtpu

from .programs import array, of_text, optimized


def loops(module: Module) -> list[Instruction]:
    return [i for i in module.instructions.values() if i.opcode == "while"]


def counted(text: str) -> list[int | None]:
    """The lengths of the loops of a module, in the order in which they are written."""
    module = of_text(f"HloModule loops\n{text}")
    trips = Trips(module)
    return [trips.of(loop) for loop in loops(module)]


LOOP = """
body {{
  p = ({type}[], f32[4]) parameter(0)
  i = {type}[] get-tuple-element(p), index=0
  x = f32[4] get-tuple-element(p), index=1
  by = {type}[] constant({by})
  next = {type}[] {how}(i, by)
  ROOT t = ({type}[], f32[4]) tuple(next, x)
}}
condition {{
  q = ({type}[], f32[4]) parameter(0)
  j = {type}[] get-tuple-element(q), index=0
  limit = {type}[] constant({limit})
  ROOT c = pred[] compare(j, limit), direction={direction}
}}
ENTRY main {{
  a = f32[4] parameter(0)
  b = {type}[] constant({start})
  c = {type}[] copy(b)
  s = ({type}[], f32[4]) tuple(c, a)
  ROOT w = ({type}[], f32[4]) while(s), condition=condition, body=body
}}
"""


@pytest.mark.parametrize(
    ("type", "start", "how", "by", "direction", "limit", "expected"),
    [
        ("s32", 0, "add", 1, "LT", 9, 9),
        ("s32", 3, "add", 2, "LE", 9, 4),
        ("s32", 10, "subtract", 3, "GT", 0, 4),
        ("s32", 10, "subtract", 3, "GE", -2, 5),
        ("u32", 1, "multiply", 2, "NE", 256, 8),
        ("u8", 250, "add", 1, "NE", 3, 9),  # over its end
        ("s8", 120, "add", 1, "GT", 0, 8),
        ("u64", 2**40, "add", 1, "LT", 2**40 + 5, 5),
        ("s32", 9, "add", 1, "LT", 9, 0),
        ("s32", 0, "add", 0, "LT", 9, None),  # it never ends
        ("f32", 0, "add", 1, "LT", 9, None),  # no whole number
        ("s16", -300, "add", 150, "LT", 9, 3),
        ("u16", 65534, "add", 1, "NE", 300, 302),
    ],
)
def test_a_counter_is_run_to_its_end(
    type: str, start: int, how: str, by: int, direction: str, limit: int, expected: int | None
) -> None:
    text = LOOP.format(type=type, start=start, how=how, by=by, direction=direction, limit=limit)
    assert counted(text) == [expected]


# A counter of 64 bits as a TPU has it: two words, a carry, and a comparison of both.
WORDS = """
body {{
  p = (u32[], u32[], f32[4]) parameter(0)
  low = u32[] get-tuple-element(p), index=0
  high = u32[] get-tuple-element(p), index=1
  x = f32[4] get-tuple-element(p), index=2
  one = u32[] constant(1)
  more = u32[] add(low, one)
  carried = pred[] compare(more, low), direction=LT
  above = u32[] add(high, one)
  next = u32[] select(carried, above, high)
  ROOT t = (u32[], u32[], f32[4]) tuple(more, next, x)
}}
less {{
  l = u32[] parameter(0)
  h = u32[] parameter(1)
  limit_low = u32[] constant({low})
  limit_high = u32[] constant({high})
  below = pred[] compare(h, limit_high), direction=LT
  same = pred[] compare(h, limit_high), direction=EQ
  within = pred[] compare(l, limit_low), direction=LT
  both = pred[] and(same, within)
  ROOT either = pred[] or(below, both)
}}
condition {{
  q = (u32[], u32[], f32[4]) parameter(0)
  low = u32[] get-tuple-element(q), index=0
  high = u32[] get-tuple-element(q), index=1
  ROOT c = pred[] fusion(low, high), kind=kLoop, calls=less
}}
ENTRY main {{
  a = f32[4] parameter(0)
  start_low = u32[] constant({start})
  start_high = u32[] constant(0)
  s = (u32[], u32[], f32[4]) tuple(start_low, start_high, a)
  ROOT w = (u32[], u32[], f32[4]) while(s), condition=condition, body=body
}}
"""


@pytest.mark.parametrize(
    ("start", "low", "high", "expected"),
    [(0, 7, 0, 7), (2**32 - 3, 4, 1, 7), (2**32 - 3, 2**32 - 1, 0, 2)],
)
def test_a_counter_of_two_words(start: int, low: int, high: int, expected: int) -> None:
    assert counted(WORDS.format(start=start, low=low, high=high)) == [expected]


NESTED = """
inner_body {
  p = (s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  by = s32[] get-tuple-element(p), index=1
  next = s32[] add(i, by)
  ROOT t = (s32[], s32[]) tuple(next, by)
}
inner_condition {
  p = (s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  limit = s32[] constant(10)
  ROOT c = pred[] compare(i, limit), direction=LT
}
body {
  p = (s32[], s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  kept = s32[] get-tuple-element(p), index=1
  changed = s32[] get-tuple-element(p), index=2
  zero = s32[] constant(0)
  s = (s32[], s32[]) tuple(zero, WHICH)
  w = (s32[], s32[]) while(s), condition=inner_condition, body=inner_body
  made = s32[] get-tuple-element(w), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  ROOT t = (s32[], s32[], s32[]) tuple(next, kept, made)
}
condition {
  p = (s32[], s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  limit = s32[] constant(3)
  ROOT c = pred[] compare(i, limit), direction=LT
}
ENTRY main {
  zero = s32[] constant(0)
  two = s32[] constant(2)
  s = (s32[], s32[], s32[]) tuple(zero, two, two)
  ROOT w = (s32[], s32[], s32[]) while(s), condition=condition, body=body
}
"""


def test_an_inner_loop_knows_what_the_outer_one_leaves_as_it_is_and_nothing_else() -> None:
    assert counted(NESTED.replace("WHICH", "kept")) == [5, 3]
    assert counted(NESTED.replace("WHICH", "changed")) == [None, 3]


def test_a_limit_that_is_an_argument_is_not_known() -> None:
    text = LOOP.format(type="s32", start=0, how="add", by=1, direction="LT", limit=9).replace(
        "b = s32[] constant(0)", "b = s32[] parameter(1)"
    )
    assert counted(text) == [None]


def steps(count: int, by: int) -> Callable[[jax.Array], jax.Array]:
    return lambda x: lax.fori_loop(3, 3 + count * by, lambda i, y: jnp.sin(y) * i, x, unroll=False)


PROGRAMS: dict[str, Callable[[jax.Array], Any]] = {
    "a loop": steps(9, 1),
    "of one round": lambda x: lax.scan(lambda c, _: (c * 2, c.sum()), x, None, length=1),
    "of 12 by scan": lambda x: lax.scan(lambda c, _: (jnp.cos(c), c.sum()), x, None, length=12),
    "by 64 bits": lambda x: lax.while_loop(
        lambda s: s[0] < 11, lambda s: (s[0] + 2, jnp.sin(s[1])), (jnp.int64(1), x)
    ),
    "downwards": lambda x: lax.while_loop(
        lambda s: s[0] >= 0, lambda s: (s[0] - 1, jnp.sin(s[1])), (jnp.int32(6), x)
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_trip_counts_are_xlas(name: str) -> None:
    """XLA's CPU compiler records the trip counts that it finds."""
    with jax.enable_x64(True):
        module = optimized(PROGRAMS[name], array(8, 8))[0]
    for loop in loops(module):
        trips = Trips(module)
        recorded = trips.of(loop)
        assert recorded is not None
        assert trips._simulate(loop) == recorded
    assert loops(module) or name == "of one round"


@needs_libtpu
def test_a_tpus_loops_count_as_often_as_they_run() -> None:
    """The TPU compiler records no trip count, and splits a counter into two 32-bit values."""
    size = 128
    weight = torch.randn(size, size, device="jax")

    def body(x: torch.Tensor, _: torch.Tensor) -> Any:
        return torch.tanh(x @ weight), x.sum()

    def outer(x: torch.Tensor, _: torch.Tensor) -> Any:
        return jaxtorch.scan(body, x, torch.arange(5, device="jax"))

    def work(x: torch.Tensor) -> Any:
        return jaxtorch.scan(outer, x, torch.arange(3, device="jax"))

    executable = (
        jaxtorch.pure(work).lower(torch.ones(size, size, device="jax"), target="v5e:1x1").compile()
    )
    module = of_text(executable.hlo)
    assert b"known_trip_count" not in executable.hlo.encode()
    trips = Trips(module)
    assert sorted(n for loop in loops(module) if (n := trips.of(loop)) is not None) == [3, 5]
    costs = Costs(module)
    assert not costs.unknown
    # The other operations are a few for each of the matrix's elements.
    product = 2 * size**3
    assert 15 * product <= costs.total.flops < 15 * (product + 4 * size**2)
    assert costs.total.transcendentals == 15 * size**2
