"""Code whose every line is known to become certain instructions, compiled by XLA as a cell's or a file's."""

from __future__ import annotations

import linecache
from typing import Any

import jax

from jaxtorch.base.jax_private import compile_with_own_lines
from jaxtorch.insight.hlo.listing import Listing, list_hlo
from jaxtorch.insight.hlo.module import Module, read_module
from jaxtorch.insight.hlo.source import Sources

CELL = "<ipython-input-7-abcdef>"


def run(source: str, names: dict[str, Any], file: str = CELL) -> dict[str, Any]:
    """Run code as the cell of that file name; returns its names."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), names)
    return names


def optimized(function: Any, *arguments: Any) -> tuple[Module, Sources, Listing, Any]:
    """A JAX function compiled by XLA: the module, its source lines, its listing, and JAX's object."""
    # The persistent cache may hold the same program with the lines of an earlier state of a test's file.
    compiled = compile_with_own_lines(jax.jit(function).lower(*arguments))
    hlo = compiled.runtime_executable().hlo_modules()[0]  # type: ignore[union-attr]  # XLA's executable
    module = read_module(hlo.as_serialized_hlo_module_proto())
    sources = Sources(module)
    return module, sources, list_hlo(module, sources, hlo.to_string()), compiled


def of_text(text: str) -> Module:
    """A module written as HLO."""
    from jaxlib._hlo import hlo_module_from_text  # type: ignore[import-not-found]  # compiled

    return read_module(hlo_module_from_text(text).as_serialized_hlo_module_proto())


def array(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    """The shape of an argument."""
    return jax.ShapeDtypeStruct(shape, dtype)
