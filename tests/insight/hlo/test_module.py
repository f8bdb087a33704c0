"""The reader of serialized modules, against XLA's printer."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxtorch.insight.hlo.module import Module, read_module
from jaxtorch.insight.hlo.wire import fields, numbers, signed

from .programs import array, of_text, optimized


def many(x: jax.Array, w: jax.Array) -> Any:
    """Products, loops, branches, sorts, gathers, several dtypes, a tuple of results."""
    y = lax.fori_loop(0, 5, lambda i, c: jnp.tanh(c @ w), x)
    z = lax.cond(y[0, 0] > 0, lambda a: a.sum(axis=0), lambda a: a[0] * 3, y)
    order = jnp.argsort(z)
    return y.astype(jnp.bfloat16), z[order], order.astype(jnp.int8), jnp.fft.fft(z)


def convolved(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(x, w, (2, 1), [(1, 2), (0, 1)])


PROGRAMS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (many, (array(8, 8), array(8, 8))),
    (jax.grad(lambda x, w: many(x, w)[1].sum()), (array(8, 8), array(8, 8))),
    (convolved, (array(2, 3, 9, 7), array(4, 3, 3, 2))),
]

_LINE = re.compile(r"^\s+(?:ROOT )?%(\S+) = (.*)$")
_LAYOUT = re.compile(r"\{[\d,:A-Z()]*\}")


def printed(text: str) -> dict[str, tuple[str, str, list[str]]]:
    """Name -> (shape, opcode, operands) of each instruction, taken from the text."""
    instructions = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match:
            text = re.sub(r"/\*.*?\*/", "", match[2])
            shape, text = split_shape(text)
            opcode, _, text = text.partition("(")
            operands = text[: text.index(")")] if opcode != "constant" else ""
            names = [o.removeprefix("%") for o in operands.split(", ") if o.startswith("%")]
            instructions[match[1]] = (_LAYOUT.sub("", shape), opcode, names)
    return instructions


def split_shape(text: str) -> tuple[str, str]:
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter in "({") - (letter in ")}")
        if letter == " " and not depth:
            return text[:i], text[i + 1 :]
    raise AssertionError(text)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_every_instruction_is_as_xla_prints_it(number: int) -> None:
    function, arguments = PROGRAMS[number]
    module, _, _, compiled = optimized(function, *arguments)
    text = compiled.runtime_executable().hlo_modules()[0].to_string()
    expected = printed(text)
    assert len(expected) > 5
    read = {
        i.name: (i.shape.text, i.opcode, [module.instructions[o].name for o in i.operands])
        for i in module.instructions.values()
    }
    assert read == expected


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_names_and_frames_are_as_xla_prints_them(number: int) -> None:
    function, arguments = PROGRAMS[number]
    module, _, _, compiled = optimized(function, *arguments)
    text = compiled.runtime_executable().hlo_modules()[0].to_string()
    for name, line in re.findall(r"^\s+(?:ROOT )?%(\S+) = (.*)$", text, re.MULTILINE):
        op_name = re.search(r'op_name="([^"]*)"', line)
        frame = re.search(r"stack_frame_id=(\d+)", line)
        instruction = module.named(name)
        assert instruction.op_name == (op_name[1] if op_name else "")
        assert instruction.frame == (int(frame[1]) if frame else 0)


def test_frames_lead_from_the_innermost_call_outward() -> None:
    def inner(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    def outer(x: jax.Array) -> jax.Array:
        return inner(x)

    module, *_ = optimized(outer, array(3))
    sine = next(i for i in module.instructions.values() if i.opcode == "sine")
    stack = module.stack(sine.frame)
    names = [frame.function.rpartition(".")[2] for frame in stack]
    assert names[:2] == ["inner", "outer"]
    first = inner.__code__.co_firstlineno
    assert [stack[0].line, stack[1].line] == [first + 1, outer.__code__.co_firstlineno + 1]
    assert stack[0].file == __file__


def test_calls_users_and_callers_are_each_others_inverse() -> None:
    module, *_ = optimized(many, array(8, 8), array(8, 8))
    loop = next(i for i in module.instructions.values() if i.opcode == "while")
    assert len(loop.calls) == 2
    for called in loop.calls:
        assert module.callers[called] == [loop.id]
    for number, users in module.users.items():
        assert all(number in module.instructions[user].operands for user in users)
    inside = {i.name for i in module.inside(loop)}
    assert any(name.startswith("tanh") for name in inside)


def test_a_module_written_by_hand() -> None:
    module = of_text(
        """
        HloModule by_hand
        ENTRY main {
          p = (f32[2,3], s8[5]) parameter(0)
          a = f32[2,3] get-tuple-element(p), index=0
          b = pred[] constant(true)
          ROOT t = (f32[2,3], pred[]) tuple(a, b)
        }
        """
    )
    assert module.name == "by_hand"
    names = [i.name for i in module.entry.instructions]
    assert names == ["p", "a", "b", "t"]
    assert module.named("%p").shape.bytes == 2 * 3 * 4 + 5
    assert module.named("t").shape.text == "(f32[2,3], pred[])"
    assert module.named("t").operands == (module.named("a").id, module.named("b").id)
    assert module.instructions[module.entry.root] is module.named("t")
    with pytest.raises(LookupError, match="by_hand has no instruction 'nobody'"):
        module.named("nobody")


@pytest.mark.parametrize(
    "data", [b"", b"\x0a\x05abc", b"\x08", b"\xff\xff", b"not a module at all"]
)
def test_bytes_that_are_no_module_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"module|message"):
        read_module(data)


def test_a_module_that_is_cut_off_is_a_value_error(whole: bytes) -> None:
    assert isinstance(read_module(whole), Module)
    with pytest.raises(ValueError, match="cut off"):
        read_module(whole[: len(whole) // 2])


@pytest.fixture
def whole() -> bytes:
    compiled = jax.jit(jnp.sin).lower(array(3)).compile()
    modules = compiled.runtime_executable().hlo_modules()  # type: ignore[union-attr]  # XLA's executable
    return bytes(modules[0].as_serialized_hlo_module_proto())


def test_the_wire_format() -> None:
    # The examples of the format's documentation: 150 in field 1, "testing" in field 2, packed 3, 270, 86942 in 6.
    assert list(fields(bytes.fromhex("089601"))) == [(1, 150)]
    assert list(fields(bytes.fromhex("120774657374696e67"))) == [(2, b"testing")]
    ((number, packed),) = fields(bytes.fromhex("3206038e029ea705"))
    assert (number, numbers(packed)) == (6, [3, 270, 86942])
    assert [signed(n) for n in numbers(bytes([0xFF] * 9 + [0x01]))] == [-1]
    assert list(fields(bytes.fromhex("0d00000000" + "11000000000000f03f"))) == [
        (1, bytes(4)),
        (2, bytes.fromhex("000000000000f03f")),
    ]
