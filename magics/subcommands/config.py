"""`%jax config`: the options of `jaxtorch.config`, shown and set for the session."""

from __future__ import annotations

import ast
from dataclasses import asdict
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from jaxtorch.base.compile_cache import compile_cache
from jaxtorch.base.options import config as options

from .table import Call, subcommand

_SAYS = {
    "fallback": "what happens when an operator has no lowering: 'warn', 'silent', 'error'",
    "matmul_precision": "None (torch's own setting), 'default', 'high', 'highest'",
    "check": "'indices': check every index, class target and probability; 'none'",
    "max_traces": "a function traced more often than this warns and says why; None: never",
    "peak": "roofline of the device: operations/s, bytes/s, as in peak=197e12,819e9; None: the built-in values",
    "program_memory": "limit in bytes for programs of eager operators, least recently used go first; None: none",
    "compile_cache": "keep compiled programs on disk across sessions",
}


@subcommand(
    "config",
    argument("changes", nargs="*", metavar="OPTION=VALUE", help="the options to set"),
    example="config max_traces=5",
    help="show the options, or set some of them for this session",
    names=lambda: [f"{name}=" for name in _SAYS],
)
def config(call: Call) -> None:
    """Show or set options."""
    changes = dict(map(_change, call.arguments.changes))
    try:
        options.update(**changes)
    except (AttributeError, ValueError) as error:
        raise UsageError(f"`%jax config`: {error}") from None
    known = _values()
    shown = changes or known
    width = max(len(f"{name}={known[name]!r}") for name in shown)
    for name in shown:
        setting = f"{name}={known[name]!r}"
        print(f"{setting:{width}}  {_SAYS.get(name, '')}")


def _values() -> dict[str, Any]:
    return asdict(options.options()) | {
        "max_traces": options.max_traces,
        "peak": options.peak,
        "program_memory": options.program_memory,
        "compile_cache": compile_cache.active,
    }


def _change(text: str) -> tuple[str, Any]:
    """
    Example:
        >>> _change("max_traces=5"), _change("fallback=error")
        (('max_traces', 5), ('fallback', 'error'))
    """
    name, sign, value = text.partition("=")
    if not sign:
        raise UsageError(f"`%jax config` takes OPTION=VALUE, as in max_traces=5, not {text!r}.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value  # a word
