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
    "fallback": "what an operator without a lowering does: 'warn', 'silent', 'error'",
    "matmul_precision": "None (torch's own setting), 'default', 'high', 'highest'",
    "check": "'indices': look at every index, class target and probability; 'none'",
    "max_traces": "a function traced more often than this warns and says why; None: never",
    "peak": "(operations, bytes) a second of the device, for rooflines, as peak=197e12,819e9; None: as known",
    "program_memory": "bytes of compiled programs of eager operators, the longest unused go first; None: no limit",
    "compile_cache": "keep compiled programs across sessions",
}


@subcommand(
    "config",
    argument("changes", nargs="*", metavar="OPTION=VALUE", help="what to set"),
    example="config max_traces=5",
    help="show the options, or set some for the session",
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
