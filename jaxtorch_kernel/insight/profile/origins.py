"""Where an instruction comes from: line, module path, operator, direction.

JAX names each operation by the scopes it was traced under (`jit(step)/transpose(jvp(GPT))/blocks.0/dot_general`): what
`jax.vjp` made of a scope is wrapped in `jvp` and `transpose`, what JAX does of its own (`jit(silu)`, `while/body`) stands
between. A module path is what the user's code named.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..hlo.module import Instruction, Module
from ..hlo.source import Sources
from ..programs import Place

# What JAX puts between the user's names.
_OWN = re.compile(
    r"^(p?jit\(.*\)|jit|pjit|while|body|cond|cond_fun|body_fun|branch_\d+_fun|closed_call|core_call|checkpoint|remat\d*"
    r"|rematted_computation|custom_jvp_call|custom_vjp_call(_jaxpr)?|shard_map|scan|named_call|xla_call|jvp\(\)"
    r"|transpose\(jvp\(\)\)|vmap\(\)|main)$"
)
_WRAPPED = re.compile(r"^(transpose|jvp|vmap|remat|checkpoint)\((.*)\)$")


class Origin(NamedTuple):
    """Whose the work is.

    Attributes:
        place: the line; None where nothing is known.
        scope: the names of modules and `record_function`s, the outermost first.
        operator: of torch eagerly, of JAX in captured code.
    """

    place: Place | None = None
    scope: tuple[str, ...] = ()
    operator: str = ""
    backward: bool = False


def named_scope(op_name: str) -> tuple[tuple[str, ...], str, bool]:
    """The module path, the operator and whether it is of the backward pass, of an instruction's name.

    Example:
        >>> named_scope("jit(step)/transpose(jvp(GPT))/blocks.0/jit(silu)/mul")
        (('GPT', 'blocks.0'), 'mul', True)
        >>> named_scope("jit(f)/jvp()/tanh")
        ((), 'tanh', False)
    """
    *scopes, operator = _split(op_name)
    path, backward = [], False
    for name in scopes:
        if _OWN.match(name):
            backward |= name.startswith("transpose(")
            continue
        while wrapped := _WRAPPED.match(name):
            backward |= wrapped[1] == "transpose"
            name = wrapped[2]
        if name:
            path.append(name)
    return tuple(path), operator, backward


def _split(op_name: str) -> list[str]:
    """The parts of a name, at the slashes that stand in no bracket."""
    parts, depth, begin = [], 0, 0
    for i, letter in enumerate(op_name):
        if letter == "(":
            depth += 1
        elif letter == ")":
            depth = max(0, depth - 1)
        elif letter == "/" and not depth:
            parts.append(op_name[begin:i])
            begin = i + 1
    return [*parts, op_name[begin:]]


def origin_of(sources: Sources, instruction: Instruction, backward: bool) -> Origin:
    """Where an instruction of a captured program comes from; `backward`: the whole program is a backward pass."""
    scope, operator, transposed = named_scope(instruction.op_name)
    place = sources.of(instruction)
    return Origin(place, scope, operator or instruction.opcode, backward or transposed)


class Part(NamedTuple):
    """Something that an instruction does.

    Attributes:
        weight: of its time, in any unit.
    """

    instruction: Instruction
    weight: float
    flops: float
    bytes: float


def parts_of(module: Module, instruction: Instruction) -> list[Part]:
    """What an event of this instruction's name does: what was fused, each by its cost; else the instruction itself."""
    if instruction.opcode not in ("fusion", "call"):
        return [_part(module, instruction)]
    inner = [i for i in module.inside(instruction) if i.opcode not in _FREE]
    return [_part(module, i) for i in inner] or [_part(module, instruction)]


_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "broadcast", "iota"}


def _part(module: Module, instruction: Instruction) -> Part:
    size = instruction.shape.bytes
    flops = instruction.shape.elements
    return Part(instruction, flops, flops, size)
