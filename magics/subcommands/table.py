"""The table of the subcommands of `%jax`: each is a function with arguments of its own, on IPython's argument parser.

A module of this folder registers its subcommands when it is imported:

    @subcommand("seed", argument("value", help="a number"), example="seed 0", help="as torch.manual_seed(0)")
    def seed(call: Call) -> None:
        torch.manual_seed(call.arguments.value)

What a subcommand returns is shown, as the value of a line.
"""

from __future__ import annotations

import difflib
import re
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser, argument

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


@dataclass(frozen=True)
class Call:
    """One use of a subcommand.

    Attributes:
        arguments: as parsed; `arguments.rest` is the rest of the line where the subcommand takes a statement.
        cell: what stands under `%%jax name`; None in `%jax name`.
        line: the whole line after `%jax`, for a cell's first line.
    """

    shell: InteractiveShell
    arguments: Namespace
    cell: str | None
    line: str


@dataclass(frozen=True)
class Subcommand:
    """A subcommand of `%jax`.

    Attributes:
        example: how it is written, without `%jax`.
        help: what it does, in one line.
        line: whether it stands in `%jax name`.
        cell: whether it stands in `%%jax name`, over a cell.
        statement: whether what follows its options is Python, left as it is in `arguments.rest`.
        names: what may follow it, for completion.
    """

    name: str
    run: Callable[[Call], Any]
    parser: MagicArgumentParser
    example: str
    help: str
    line: bool = True
    cell: bool = False
    statement: bool = False
    names: Callable[[], Iterable[str]] = tuple

    @property
    def options(self) -> list[str]:
        """Its options, the long form of each."""
        own = [a for a in self.parser._actions if a.option_strings and a.dest != "help"]
        return [a.option_strings[-1] for a in own]

    @property
    def positional(self) -> list[str]:
        """Its arguments that are no options."""
        return [a.dest for a in self.parser._actions if not a.option_strings]


SUBCOMMANDS: dict[str, Subcommand] = {}


def subcommand(
    name: str, *arguments: argument, example: str = "", help: str, **more: Any
) -> Callable[[Callable[[Call], Any]], Callable[[Call], Any]]:
    """Register a function as a subcommand of `%jax`; `more`: see `Subcommand`."""

    def register(function: Callable[[Call], Any]) -> Callable[[Call], Any]:
        parser = MagicArgumentParser(prog=f"%jax {name}", add_help=False)
        for one in arguments:
            one.add_to_parser(parser, None)
        SUBCOMMANDS[name] = Subcommand(name, function, parser, example or name, help, **more)
        return function

    return register


def parse(found: Subcommand, line: str) -> Namespace:
    """The arguments of a subcommand; a mistake is an error of one line."""
    options, statement = _split(found, line) if found.statement else (uncommented(line), "")
    parsed, rest = found.parser.parse_argstring(options, partial=True)
    parsed.rest = statement
    if not rest:
        return parsed
    extra = rest[0]
    if extra.startswith("-") and found.options:
        near = nearest(extra, found.options)
        raise UsageError(f"`%jax {found.name}` has no option {extra!r}. The nearest is `{near}`.")
    after = ", ".join((*found.positional, *found.options)) or "nothing"
    raise UsageError(f"`%jax {found.name}` takes {after} after it, and {extra!r} is there.")


def uncommented(line: str) -> str:
    """A magic's line without a comment at its end, which IPython leaves there.

    Example:
        >>> uncommented("seed 0  # as ever"), uncommented("hlo #3")
        ('seed 0', 'hlo #3')
    """
    return re.split(r"(?:^|\s)#\s", line, maxsplit=1)[0].rstrip()


def _split(found: Subcommand, line: str) -> tuple[str, str]:
    """The options at the start of a line, and the statement after them as it is written."""
    takes = {
        name: action.nargs != 0
        for action in found.parser._actions
        for name in action.option_strings
    }
    end, value = 0, False
    for token in re.finditer(r"\S+", line):
        if not value and not token[0].startswith("-"):
            break
        end, value = token.end(), not value and takes.get(token[0], False)
    return line[:end], line[end:].strip()


def nearest(given: str, known: Iterable[str] = ()) -> str:
    """The subcommand of `%jax` (or of `known`) that is most like this one.

    Example:
        >>> from jaxtorch.magics.subcommands import nearest
        >>> nearest("stats")
        'status'
    """
    return max(
        known or SUBCOMMANDS,
        key=lambda one: difflib.SequenceMatcher(None, given.lower(), one).ratio(),
    )


def help_text() -> str:
    """Every subcommand with its example, for `%jax?`."""
    width = max(len(one.example) for one in SUBCOMMANDS.values()) + 2
    lines = []
    for found in SUBCOMMANDS.values():
        sign = "%jax" if found.line else "%%jax"
        lines.append(f"{sign} {found.example:{width}}{found.help}")
        for action in found.parser._actions:
            if action.help:
                names = ", ".join(action.option_strings) or action.dest
                lines.append(f"    {names}: {action.help}")
    return "\n".join(lines)
