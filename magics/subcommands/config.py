"""`%jax config`: the options of `jaxtorch.config`, shown and set for the session."""

from __future__ import annotations

import ast
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from jaxtorch.base.options import OPTIONS
from jaxtorch.base.options import config as options

from .table import Invocation, subcommand


def _settings(start: str) -> list[str]:
    """The options; after the "=" of one, its values."""
    name, sign, _ = start.partition("=")
    if not sign or name not in OPTIONS:
        return [f"{option}=" for option in OPTIONS]
    return [f"{name}={value}" for value in OPTIONS[name].metadata["values"]]


@subcommand(
    "config",
    argument("changes", nargs="*", metavar="OPTION=VALUE", help="the options to set"),
    example="config max_traces=5",
    help="show the options, or set some of them for this session",
    values={"changes": _settings},
)
def config(call: Invocation) -> None:
    """Show or set options."""
    changes = dict(map(_change, call.arguments.changes))
    try:
        options.update(**changes)
    except (AttributeError, ValueError) as error:
        raise UsageError(f"`%jax config`: {error}") from None
    values = options.values()
    shown = changes or values
    width = max(len(f"{name}={values[name]!r}") for name in shown)
    for name in shown:
        setting = f"{name}={values[name]!r}"
        print(f"{setting:{width}}  {OPTIONS[name].metadata['help']}")


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
