"""What may come next on the line of a magic: read from its argument parser and the words before the cursor."""

from __future__ import annotations

from argparse import Action, ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MANY = ("+", "*")  # as argparse writes "one or more" and "any number" of values


@dataclass(frozen=True)
class Expected:
    """What may come next.

    Attributes:
        values: the arguments whose value may come next.
        options: the options that may come next.
    """

    values: tuple[Action, ...]
    options: tuple[str, ...]


def expected(parser: ArgumentParser, before: Sequence[str]) -> Expected:
    """What may come after these words.

    Example:
        >>> parser = ArgumentParser(add_help=False)
        >>> _ = parser.add_argument("name", nargs="?")
        >>> _ = parser.add_argument("--stage", choices=["hlo", "jaxpr"])
        >>> [a.dest for a in expected(parser, ["--stage"]).values], expected(parser, ["--stage"]).options
        (['stage'], ())
        >>> [a.dest for a in expected(parser, ["step"]).values], expected(parser, ["step"]).options
        ([], ('--stage',))
    """
    by_option = {name: action for action in parser._actions for name in action.option_strings}
    positional = [action for action in parser._actions if not action.option_strings]
    used: set[str] = set()
    option: Action | None = None
    taken = 0  # values of this option, or of the first positional argument if there is no option
    for word in before:
        if word in by_option:
            option, taken = by_option[word], 0
            used.add(option.dest)
        elif option is not None and not _takes(option, taken):
            option, taken = None, 1
        else:
            taken += 1
    if option is not None and option.nargs is None and taken == 0:
        return Expected((option,), ())
    options = tuple(_long(a) for a in _offered(parser) if a.dest not in used)
    if option is not None and _takes(option, taken):
        return Expected((option,), options)
    free = [a for a in positional[:1] if option is not None or _takes(a, taken)]
    return Expected(tuple(free), options)


def _takes(action: Action, taken: int) -> bool:
    """Whether an argument takes one more value."""
    if action.nargs == 0:
        return False
    return action.nargs in MANY or taken < 1


def _offered(parser: ArgumentParser) -> Iterator[Action]:
    return (a for a in parser._actions if a.option_strings and a.dest != "help")


def _long(action: Action) -> str:
    return next((s for s in action.option_strings if s.startswith("--")), action.option_strings[0])
