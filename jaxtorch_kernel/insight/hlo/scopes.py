"""Named scopes: the module path an instruction was traced under, and whether it belongs to the backward pass.

XLA's `op_name` looks like `jit(step)/transpose(jvp(GPT))/blocks.0/attention/dot_general`. A transformation wraps the
first scope inside it, loops and calls insert words, and the name of the primitive comes last. Where XLA joined two
instructions, it writes both names with a semicolon between them; the first one counts. A derivative that is taken
inside a scope repeats the scopes around it: `transpose(GPT)/blocks.0/jvp(transpose(GPT))/blocks.0/dot_general`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_WRAPPED = re.compile(r"([\w.\-]+)\((.*)\)$", re.DOTALL)
# Three kinds of parts are not scopes: names of JAX transformations that wrap a scope,
_TRANSFORMS = frozenset(
    ["jvp", "transpose", "vmap", "remat", "checkpoint", "custom_jvp", "custom_vjp"]
)
# wrappers of compiled functions,
_CALLS = frozenset(["jit", "pjit"])
# and words that control flow and calls insert between scopes.
_WORDS = re.compile(
    r"while|body|cond|scan|closed_call|core_call|call_exported|checkpoint|remat2?|rematted_computation|branch_\d+_fun|pjit|"
    r"custom_[jv][vj]p_call(_jaxpr)?|shard_map|"
)


class Scope(NamedTuple):
    """The scope of an instruction.

    Attributes:
        path: the named scopes, the outermost first.
        backward: whether it belongs to the backward pass.
        primitive: the name of the JAX primitive.
    """

    path: tuple[str, ...]
    backward: bool
    primitive: str


@lru_cache(maxsize=65536)
def scope_of(op_name: str) -> Scope:
    """Parse an `op_name`.

    Example:
        >>> from jaxtorch.insight.hlo.scopes import scope_of
        >>> scope_of("jit(step)/transpose(jvp(GPT))/blocks.0/while/body/dot_general")
        Scope(path=('GPT', 'blocks.0'), backward=True, primitive='dot_general')
        >>> scope_of("jit(f)/jvp()/sin").path
        ()
        >>> scope_of("jit(f)/Linear/mul;jit(f)/ReLU/max")
        Scope(path=('Linear',), backward=False, primitive='mul')
        >>> scope_of("jit(f)/transpose(GPT)/0/jvp(transpose(GPT))/0/jvp()/dot_general").path
        ('GPT', '0')
    """
    parts = _split(op_name.partition(";jit(")[0])
    primitive = parts.pop() if parts else ""
    path: list[str] = []
    backward = False
    around = 0  # how many scopes may be repeated
    for part in parts:
        wrapped = _WRAPPED.fullmatch(part)
        while wrapped and wrapped[1] in _TRANSFORMS:
            backward = backward or wrapped[1] == "transpose"
            part = wrapped[2]
            around = len(path) if part else 0
            wrapped = _WRAPPED.fullmatch(part)
        if not (wrapped and wrapped[1] in _CALLS) and not _WORDS.fullmatch(part):
            path.append(part)
            if around and path[around:] == path[:around]:
                del path[around:]
    return Scope(tuple(path), backward, primitive)


def _split(name: str) -> list[str]:
    """Split at the slashes outside of parentheses."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(name):
        if letter == "(":
            depth += 1
        elif letter == ")":
            depth = max(0, depth - 1)
        elif letter == "/" and not depth:
            parts.append(name[start:i])
            start = i + 1
    parts.append(name[start:])
    return [part for part in parts if part]
