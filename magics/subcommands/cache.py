"""`%jax cache`: the compiled programs of the session."""

from __future__ import annotations

from collections.abc import Iterable

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from jaxtorch.insight.programs import keep, program
from jaxtorch.insight.recompiles import clear, functions, named
from jaxtorch.widgets.cache import SORTS, CacheView

from .programs import captured_names
from .table import Invocation, nearest, subcommand


def _functions(start: str) -> Iterable[str]:
    return dict.fromkeys(f.name for f in functions())


@subcommand(
    "cache",
    argument("--sort", metavar="COLUMN", help=f"sort by one of {', '.join(SORTS)}"),
    argument(
        "--filter",
        nargs="+",
        metavar="WORD",
        default=[],
        help="show only programs that contain all these words",
    ),
    argument(
        "--clear",
        nargs="?",
        const="",
        metavar="NAME",
        help="drop the programs of one function, or of all: the next call recompiles",
    ),
    argument("--keep", metavar="NAME", help="keep the HLO of a program after its function is gone"),
    argument(
        "--all",
        action="store_true",
        help="include the small programs that jaxtorch itself runs through JAX",
    ),
    example="cache --sort time",
    help="every compiled program: where it comes from, how long it took, and why it was compiled again",
    values={
        "sort": lambda start: SORTS,
        "clear": _functions,
        "keep": captured_names,
        "filter": captured_names,
    },
)
def cache(call: Invocation) -> CacheView | None:
    """The table of compiled programs."""
    arguments = call.arguments
    if arguments.clear is not None and arguments.keep is not None:
        raise UsageError("`%jax cache` takes --clear or --keep, not both.")
    if arguments.clear is not None:
        print(_cleared(arguments.clear))
        return None
    if arguments.keep is not None:
        print(_kept(arguments.keep))
        return None
    sort = arguments.sort or "order"
    if sort not in SORTS:
        raise UsageError(
            f"`%jax cache --sort` takes a column: {', '.join(SORTS)}. The nearest to {sort!r} is "
            f"`{nearest(sort, SORTS)}`."
        )
    return CacheView(sort, " ".join(arguments.filter), arguments.all)


def _cleared(name: str) -> str:
    try:
        selected = named(name) if name else functions(all_of_them=True)
    except LookupError as error:
        raise UsageError(f"`%jax cache --clear`: {error}.") from None
    clear(selected)
    count = sum(len(f.programs) for f in selected)
    what = f"{count} program{'s'[: count != 1]}"
    return f"Dropped {what}: the next call recompiles." if count else "No programs to drop."


def _kept(name: str) -> str:
    try:
        info = program(name)
        keep(info)
    except LookupError as error:
        raise UsageError(f"`%jax cache --keep`: {error}.") from None
    return f"Kept {info.name} (#{info.id}): `%jax hlo {info.id}` can show it even after its function is gone."
