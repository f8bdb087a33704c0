"""From a line to its instructions and back: code whose every line is known to become certain instructions.

Each test expects certain instructions for each line and no others. So a line number that is off by one fails them all.
"""

from __future__ import annotations

import linecache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax import lax

import jaxtorch
from jaxtorch.insight.hlo.listing import Listing, list_jaxpr, list_stablehlo
from jaxtorch.insight.hlo.reading import Reading
from jaxtorch.insight.hlo.source import location_of_stack
from jaxtorch.insight.programs import ProgramInfo, programs

from .programs import CELL, array, optimized, run

# Opcodes that say by themselves which line they are of.
TORCH = """\
def f(x, w):
    y = x @ w
    for _ in range(2):
        y = torch.tanh(y)
    z = torch.sin(y)
    z = torch.exp(z)
    return z.amax(0)
"""
LINES = {"dot": {2}, "tanh": {4}, "sine": {5}, "exponential": {6}, "maximum": {7}}

LOOP = """\
def f(x, w):
    y = x @ w
    def body(i, c):
        return jnp.tanh(c @ w)
    z = lax.fori_loop(0, 7, body, y)
    return jnp.sin(z)
"""


def latest(name: str, part: str = "") -> ProgramInfo:
    return [p for p in programs() if p.name == name and p.part == part][-1]


def lines_of(reading: Reading, opcode: str) -> set[int]:
    """The lines of all instructions of an opcode; each must be of the cell."""
    locations = [
        reading.sources.of(i) for i in reading.module.instructions.values() if i.opcode == opcode
    ]
    assert locations
    assert all(p is not None and p.file == CELL and p.cell == 7 for p in locations)
    return {p.line for p in locations if p is not None}


def lines_in(listing: Listing, text: str) -> set[int]:
    """The source lines of all lines of a listing that contain a text."""
    matches = listing.grep(text)
    assert matches
    return {p.line for i in matches for p in listing.locations[i]}


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_captured_code(capture: Any) -> None:
    x, w = torch.randn(8, 16, device="jax"), torch.randn(16, 16, device="jax")
    names = run(TORCH, {"torch": torch})
    with torch.no_grad():
        captured = capture(names["f"], name="lines")
        captured(x, w)
    reading = Reading(latest("lines"))
    assert {opcode: lines_of(reading, opcode) for opcode in LINES} == LINES
    assert [r.location.line for r in reading.lines if r.location is not None] == [2, 4, 5, 6, 7]
    costliest = max(reading.lines, key=lambda r: r.cost.flops)
    assert costliest.location is not None
    assert (costliest.location.line, costliest.cost.flops) == (2, 2 * 8 * 16 * 16)
    functions = {
        r.location.line: r.cost.transcendentals for r in reading.lines if r.location is not None
    }
    assert functions == {2: 0, 4: 2 * 8 * 16, 5: 8 * 16, 6: 8 * 16, 7: 0}


def test_a_fusion_has_the_lines_of_all_that_was_fused() -> None:
    names = run(TORCH, {"torch": torch})
    captured = jaxtorch.pure(names["f"], name="fused")
    with torch.no_grad():
        captured(torch.randn(8, 16, device="jax"), torch.randn(16, 16, device="jax"))
    reading = Reading(latest("fused"))
    location = next(
        r.location for r in reading.lines if r.location is not None and r.location.line == 5
    )
    whole = [i for i in reading.sources.at(location) if i.opcode == "fusion"]
    assert whole
    for fusion in whole:
        inside = {i.opcode for i in reading.module.inside(fusion)}
        spanned = {p.line for p in reading.sources.spanned(fusion)}
        expected = set().union(*(LINES[opcode] for opcode in inside & LINES.keys()))
        assert spanned == expected
        assert {5, 6} <= spanned, (
            "XLA no longer fuses sine and exponential: the test needs other operators"
        )


def test_the_texts_before_xla() -> None:
    x, w = torch.randn(8, 16, device="jax"), torch.randn(16, 16, device="jax")
    names = run(TORCH, {"torch": torch})
    captured = jaxtorch.pure(names["f"], name="before")
    with torch.no_grad():
        captured(x, w)
    reading = Reading(latest("before"))
    for stage, texts in {
        "jaxpr": ("dot_general", "= tanh", "= sin ", "= exp ", "reduce_max"),
        "stablehlo": ("dot_general", "hlo.tanh", "hlo.sine", "hlo.exponential", "hlo.maximum"),
        "hlo": (" dot(", " tanh(", " sine(", " exponential(", " maximum("),
    }.items():
        listing = reading.listing(stage)
        assert [lines_in(listing, text) for text in texts] == [{2}, {4}, {5}, {6}, {7}], stage
        (of_six,) = {p for locations in listing.locations for p in locations if p.line == 6}
        assert any(texts[3] in listing.lines[i] for i in listing.at(of_six))
        assert not any(texts[0] in listing.lines[i] for i in listing.at(of_six))
        assert "loc(" not in listing.text
        assert "stack_frame_id" not in listing.text
        assert "FileNames" not in listing.text


def test_the_backward_program_has_the_lines_of_the_forward_pass() -> None:
    x = torch.randn(8, 16, device="jax", requires_grad=True)
    w = torch.randn(16, 16, device="jax", requires_grad=True)
    names = run(TORCH, {"torch": torch})
    captured = jaxtorch.pure(names["f"], name="gradient")
    captured(x, w).sum().backward()
    forward, backward = (
        Reading(latest("gradient", "saving")),
        Reading(latest("gradient", "backward")),
    )
    assert lines_of(forward, "dot") == lines_of(backward, "dot") == {2}
    assert lines_of(forward, "cosine") == {5}  # the derivative of line 5, kept
    dots = [i for i in backward.module.instructions.values() if i.opcode == "dot"]
    assert len(dots) == 2  # of x and of w
    work = {r.location.line for r in backward.lines if r.location is not None and r.cost.flops}
    assert work == {2, 4, 5, 6, 7}


def test_a_whole_steps_backward_pass_is_at_the_lines_that_it_is_the_gradient_of() -> None:
    source = """\
def step(x, w):
    y = torch.sin(x @ w)
    y.sum().backward()
    return y
"""
    x = torch.randn(8, 16, device="jax")
    w = torch.randn(16, 16, device="jax", requires_grad=True)
    names = run(source, {"torch": torch})
    captured = jaxtorch.jit(names["step"], name="step")
    captured(x, w)
    reading = Reading(latest("step"))
    assert lines_of(reading, "sine") == {2}
    assert lines_of(reading, "cosine") == {2}
    assert lines_of(reading, "dot") == {2}


def test_an_eager_operator_has_the_line_that_compiled_it() -> None:
    source = """\
x = torch.ones(3, 5, 11, device="jax")

y = x.sin()
"""
    run(source, {"torch": torch})
    reading = Reading(latest("sin.default"))
    assert reading.program.kind == "eager"
    assert lines_of(reading, "sine") == {3}


def test_a_loops_body_has_the_bodys_line() -> None:
    f = run(LOOP, {"jnp": jnp, "lax": lax})["f"]
    module, sources, listing, _ = optimized(f, array(8, 8), array(8, 8))
    loop = next(i for i in module.instructions.values() if i.opcode == "while")
    location = sources.of(loop)
    assert location is not None
    assert location.line == 5
    tanh = [sources.of(i) for i in module.inside(loop) if i.opcode == "tanh"]
    assert [p.line for p in tanh if p is not None] == [4]
    dots = [sources.of(i) for i in module.instructions.values() if i.opcode == "dot"]
    assert sorted(p.line for p in dots if p is not None) == [2, 4]
    assert lines_in(listing, " sine(") == {6}
    lowered = jax.jit(f).lower(array(8, 8), array(8, 8))
    before = list_stablehlo(lowered.as_text(debug_info=True))
    assert lines_in(before, "stablehlo.tanh") == {4}
    assert lines_in(before, "stablehlo.while") == {5}
    assert lines_in(before, "stablehlo.sine") == {6}
    traced = list_jaxpr(jax.jit(f).trace(array(8, 8), array(8, 8)).jaxpr)
    assert lines_in(traced, "= tanh") == {4}
    assert lines_in(traced, "= sin") == {6}
    assert lines_in(traced, "= scan[") == {5}


def test_helpers_show_as_the_line_of_the_cell_that_called_them(tmp_path: Any) -> None:
    helper = str(tmp_path / "helper.py")
    names = run("def help(x):\n    return torch.sinh(x)\n", {"torch": torch}, helper)
    run("def f(x):\n    x = x + 1\n    return help(x)\n", names)
    with torch.no_grad():
        captured = jaxtorch.pure(names["f"], name="helped")
        captured(torch.ones(4, device="jax"))
        alone = jaxtorch.pure(names["help"], name="alone")
        alone(torch.ones(4, device="jax"))
    locations = {p.line for p in Reading(latest("helped")).sources.locations}
    assert locations == {2, 3}
    (location,) = Reading(latest("alone")).sources.locations
    assert (location.file, location.line, location.cell) == (helper, 2, None)


def test_which_frame_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    library = torch.nn.functional.__file__
    mine, other = ("/home/me/mine.py", 3, "f"), ("/home/me/main.py", 9, "<module>")
    cell = ("/tmp/ipykernel_77/1234.py", 4, "<module>")
    of_another_session = ("/tmp/ipykernel_7827/3815032557.py", 7, "<module>")
    # IPython puts the text of each cell there.
    monkeypatch.setitem(linecache.cache, cell[0], (9, None, ["x = 1\n"] * 4, cell[0]))
    outer = ("<ipython-input-2-ffff>", 1, "<module>")
    assert location_of_stack([(library, 5, "relu")]) is None
    location = location_of_stack([(library, 5, "relu"), mine, other])
    assert location is not None
    assert (location.file, location.line) == mine[:2]
    location = location_of_stack([(library, 5, "relu"), mine, cell, outer])
    assert location is not None
    assert (location.file, location.line) == cell[:2]
    assert location_of_stack([of_another_session, outer]) == location_of_stack([outer])
    assert location_of_stack([of_another_session]) is None
    machinery = (jaxtorch.programs.compiled.__file__, 70, "build")
    assert location_of_stack([machinery, cell]) is None
    assert location_of_stack([]) is None


def test_a_text_without_locations_has_no_links() -> None:
    lowered = jax.jit(jnp.sin).lower(array(3))
    listing = list_stablehlo(lowered.as_text())
    assert len(listing.lines) > 3
    assert not any(listing.locations)


def test_names_that_look_like_locations() -> None:
    odd = 'loc(#loc3) "q" \\ \u00e9 <img src=x onerror=alert(1)>'

    def f(x: jax.Array) -> jax.Array:
        with jax.named_scope(odd):
            return jnp.sin(x)

    f_lines = f.__code__.co_firstlineno + 2
    lowered = jax.jit(f).lower(array(3))
    listing = list_stablehlo(lowered.as_text(debug_info=True))
    assert lines_in(listing, "stablehlo.sine") == {f_lines}
    module, sources, _, _ = optimized(f, array(3))
    sine = next(i for i in module.instructions.values() if i.opcode == "sine")
    location = sources.of(sine)
    assert location is not None
    assert location.line == f_lines
    assert odd in sine.op_name
