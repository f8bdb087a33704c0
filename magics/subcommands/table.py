"""The table of `%jax` subcommands. A subcommand is a function. IPython's argument parser parses its arguments.

Each module in this folder registers its subcommands on import:

    @subcommand("seed", argument("value", help="a number"), example="seed 0", help="same as torch.manual_seed(0)")
    def seed(call: Invocation) -> None:
        torch.manual_seed(call.arguments.value)

The return value of a subcommand is displayed like the value of an expression.
"""

from __future__ import annotations

import difflib
import re
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser, argument

from ..cells import uncommented

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

Values = Callable[[str], Iterable[str]]  # what completes the beginning of a value


@dataclass(frozen=True)
class Invocation:
    """One use of a subcommand.

    Attributes:
        arguments: the parsed arguments. If the subcommand takes a statement, `arguments.statement` is the code after
            the options.
        cell: the cell's text below `%%jax name`; None for `%jax name`.
        line: the whole line after `%jax`.
    """

    shell: InteractiveShell
    arguments: Namespace
    cell: str | None
    line: str


@dataclass(frozen=True)
class Subcommand:
    """A subcommand of `%jax`.

    Attributes:
        example: an example of its use, without `%jax`.
        help: what it does, in one line.
        line: whether `%jax name` is allowed.
        cell: whether `%%jax name` is allowed.
        statement: whether Python code follows the options. The code is left unparsed in `arguments.statement`.
        values: completions for the value of an argument or option, by the name of its attribute in `arguments`. The
            function gets the beginning of the value.
        code: the arguments and options that are Python code, by the same name.
    """

    name: str
    run: Callable[[Invocation], Any]
    parser: MagicArgumentParser
    example: str
    help: str
    line: bool = True
    cell: bool = False
    statement: bool = False
    values: Mapping[str, Values] = field(default_factory=dict)
    code: Collection[str] = ()

    @property
    def options(self) -> list[str]:
        """The options, in their long form."""
        actions = [a for a in self.parser._actions if a.option_strings and a.dest != "help"]
        return [a.option_strings[-1] for a in actions]

    @property
    def positional(self) -> list[str]:
        """The positional arguments."""
        return [a.dest for a in self.parser._actions if not a.option_strings]


SUBCOMMANDS: dict[str, Subcommand] = {}


def subcommand(
    name: str, *arguments: argument, example: str = "", help: str, **more: Any
) -> Callable[[Callable[[Invocation], Any]], Callable[[Invocation], Any]]:
    """Register a function as a subcommand of `%jax`. For `more`, see `Subcommand`."""

    def register(function: Callable[[Invocation], Any]) -> Callable[[Invocation], Any]:
        parser = MagicArgumentParser(prog=f"%jax {name}", add_help=False)
        for one in arguments:
            one.add_to_parser(parser, None)
        SUBCOMMANDS[name] = Subcommand(name, function, parser, example or name, help, **more)
        return function

    return register


HELP = ("help", "--help", "-h")
SHOWS_HELP = "`%jax?` shows the help of %jax: its subcommands, and the options of each."


def parse(command: Subcommand, line: str) -> Namespace:
    """The arguments of a subcommand. Wrong arguments raise an error of one line."""
    options, statement = _split(command, line) if command.statement else (uncommented(line), "")
    parsed, unparsed = command.parser.parse_argstring(options, partial=True)
    parsed.statement = statement
    if not unparsed:
        return parsed
    extra = unparsed[0]
    if extra in HELP:
        raise UsageError(SHOWS_HELP)
    if extra.startswith("-") and command.options:
        near = nearest(extra, command.options)
        raise UsageError(f"`%jax {command.name}` has no option {extra!r}. The nearest is `{near}`.")
    after = ", ".join((*command.positional, *command.options)) or "nothing"
    raise UsageError(f"`%jax {command.name}` takes {after}, not {extra!r}.")


def _split(command: Subcommand, line: str) -> tuple[str, str]:
    """The options at the start of a line, and the statement after them, verbatim."""
    end, _ = _options_end(command, line)
    rest = line[end:].strip()
    return line[:end], "" if rest.startswith("#") else rest


def statement_of(command: Subcommand, line: str) -> str | None:
    """The code on an unfinished line, up to its end; None if the line's last word is an option or the value of one.

    Example:
        >>> from jaxtorch.magics.subcommands import SUBCOMMANDS, statement_of
        >>> profile = SUBCOMMANDS["profile"]
        >>> statement_of(profile, "--repeat 3 step(x"), statement_of(profile, "--repeat 3")
        ('step(x', None)
    """
    if not command.statement:
        return None
    end, value = _options_end(command, line)
    rest = line[end:]
    return None if value or not (rest[:1].isspace() or end == 0) else rest.lstrip()


def _options_end(command: Subcommand, line: str) -> tuple[int, bool]:
    """Where the options at the start of a line end, and whether the last of them still needs a value."""
    takes = {
        name: action.nargs != 0
        for action in command.parser._actions
        for name in action.option_strings
    }
    end, value = 0, False
    for token in re.finditer(r"\S+", line):
        if not takes or (not value and not token[0].startswith("-")):
            break  # of a command without options, the whole line is code: `%jax show -x`
        end, value = token.end(), not value and takes.get(token[0], False)
    return end, value


def nearest(given: str, choices: Iterable[str] = ()) -> str:
    """The subcommand of `%jax` (or the entry of `choices`) closest to this name.

    Example:
        >>> from jaxtorch.magics.subcommands import nearest
        >>> nearest("stats")
        'status'
    """
    return max(
        choices or SUBCOMMANDS,
        key=lambda choice: difflib.SequenceMatcher(None, given.lower(), choice).ratio(),
    )


def help_text() -> str:
    """Every subcommand with its example, for `%jax?`."""
    width = max(len(command.example) for command in SUBCOMMANDS.values()) + 2
    lines = []
    for command in SUBCOMMANDS.values():
        sign = "%jax" if command.line else "%%jax"
        lines.append(f"{sign} {command.example:{width}}{command.help}")
        for action in command.parser._actions:
            if action.help:
                names = ", ".join(action.option_strings) or action.dest
                lines.append(f"    {names}: {action.help}")
    return "\n".join(lines)
