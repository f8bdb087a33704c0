"""Tab completion of the lines of `%jax`, `%%pure` and `%%jit`.

The candidates come from the argument parser (`expected.py`): subcommands, options that are not on the line yet, the
values of an option or an argument, file names for arguments that name a file, and Python names for code. IPython's own
candidates (file names, names that no magic accepts) are suppressed.
"""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping
from glob import glob
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

import torch
from IPython.core.completer import (
    CompletionContext,
    IPCompleter,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
    provisionalcompleter,
)

from jaxtorch.capture.dependencies.reads import names_read

from .cell_magics import CellMagics
from .elsewhere import target_names
from .expected import expected
from .subcommands import SUBCOMMANDS, Subcommand, Values, statement_of

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_LINE = re.compile(r"(?:^|[\s=])(?P<sign>%%?)jax\s+(?P<rest>.*)$", re.DOTALL)
_CELL = re.compile(r"^%%(?P<magic>pure|jit)\s+(?P<rest>.*)$", re.DOTALL)
_FILE = "FILE"  # the metavar of an argument that names a file


def completer_of(shell: InteractiveShell) -> Callable[[CompletionContext], SimpleMatcherResult]:
    """The matcher for a shell."""
    python = _python_completer(shell)

    @context_matcher(identifier="jaxtorch")
    def complete_jax(context: CompletionContext) -> SimpleMatcherResult:
        line = context.line_with_cursor[: context.cursor_position]
        match = _CELL.search(line) if context.cursor_line == 0 else None
        if match is not None:
            parser: ArgumentParser = getattr(CellMagics, match["magic"]).parser
            named = _variables(context.full_text, shell.user_ns)
            values = {"static": named, "donate": named, "target": target_names}
            return _words(parser, match["rest"], values)
        match = _LINE.search(line)
        if match is None:
            return {"completions": []}
        return _on_jax_line(match["sign"], match["rest"], python)

    return complete_jax


def _on_jax_line(sign: str, rest: str, python: IPCompleter) -> SimpleMatcherResult:
    name, space, arguments = rest.partition(" ")
    if not space:
        return _offer(
            (s.name for s in SUBCOMMANDS.values() if (s.cell if sign == "%%" else s.line)), name
        )
    command = SUBCOMMANDS.get(name)
    if command is None:
        return _offer((), "")
    code = statement_of(command, arguments) if sign == "%" else None
    if code is not None:
        return _names_of(python, code)
    return _words(command.parser, arguments, command.values, command, python)


def _words(
    parser: ArgumentParser,
    line: str,
    values: Mapping[str, Values],
    command: Subcommand | None = None,
    python: IPCompleter | None = None,
) -> SimpleMatcherResult:
    """The completions of the last word of a line that consists of arguments."""
    *before, word = line.split(" ")
    option, equals, value = word.partition("=")
    is_value = bool(equals) and option.startswith("--")
    if is_value:  # `--stage=hlo` is `--stage hlo`
        before, word = [*before, option], value
    following = expected(parser, [w for w in before if w])
    choices: list[str] = []
    for action in following.values:
        if command is not None and python is not None and action.dest in command.code:
            if not word.startswith("-"):
                return _names_of(python, word)
        elif action.metavar == _FILE and python is not None:
            choices += _files(word)
        elif action.choices is not None:
            choices += map(str, action.choices)
        elif action.dest in values:
            choices += values[action.dest](word)
    return _offer(choices if is_value else (*choices, *following.options), word)


class _Suppressing(list[SimpleCompletion]):
    """Completions that suppress those of IPython even if there are none: IPython asks for the length before."""

    def __len__(self) -> int:
        return super().__len__() or 1


def _offer(choices: Iterable[str], start: str) -> SimpleMatcherResult:
    fitting = dict.fromkeys(word for word in choices if word.startswith(start))
    return {
        "completions": _Suppressing(SimpleCompletion(text=w, type="magic") for w in fitting),
        "matched_fragment": start,
        "suppress": True,
        "ordered": True,
    }


def _files(start: str) -> list[str]:
    """The files and folders whose path begins like this."""
    return [f"{path}{os.sep}" if os.path.isdir(path) else path for path in glob(f"{start}*")]


# -- Python ---------------------------------------------------------------------------------------------------------


def _python_completer(shell: InteractiveShell) -> IPCompleter:
    """A completer of IPython's own for Python code in this namespace, without files and magics."""
    completer = IPCompleter(
        shell=shell,
        namespace=shell.user_ns,
        global_namespace=shell.user_global_ns,
        parent=shell,
    )
    unwanted = ("file_matcher", "magic_matcher", "magic_config_matcher", "magic_color_matcher")
    completer.disable_matchers = [f"IPCompleter.{name}" for name in unwanted]
    return completer


def _names_of(python: IPCompleter, code: str) -> SimpleMatcherResult:
    """The Python names that complete a piece of code; the user's variables if it is empty."""
    if not code.strip():
        return _offer(_own_variables(python), "")
    with provisionalcompleter():
        candidates = list(python.completions(code, len(code)))
    start = min((c.start for c in candidates), default=len(code))
    return _offer((code[start : c.start] + c.text for c in candidates), code[start:])


def _own_variables(python: IPCompleter) -> list[str]:
    """The variables of the user, tensors first; without modules, and without the dozens of names of Python."""
    hidden = python.shell.user_ns_hidden
    own = {
        name: value
        for name, value in python.namespace.items()
        if not name.startswith("_") and name not in hidden
    }
    names = [name for name, value in own.items() if not isinstance(value, ModuleType)]
    return sorted(names, key=lambda n: not isinstance(own[n], torch.Tensor))


def _variables(cell: str, names: Mapping[str, object]) -> Values:
    """The variables that the cell reads, tensors first; any tensor while the cell is not written yet."""
    try:
        code = compile(cell.partition("\n")[2], "", "exec")
        read = [n for n in names_read(code).globals if not _is_definition(names.get(n))]
    except SyntaxError:
        read = []
    tensors = [n for n, value in names.items() if isinstance(value, torch.Tensor)]
    known = sorted(read, key=lambda n: n not in tensors) or [n for n in tensors if n[0] != "_"]
    return lambda word: known


def _is_definition(value: object) -> bool:
    return isinstance(value, ModuleType | FunctionType | type)
