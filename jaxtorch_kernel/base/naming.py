"""Names of the inputs of programs, such as `model.0.weight`, which views and HLO show instead of numbers.

JAX names the parameters of a program after those of its Python function. The functions here take all arrays as
`*operands`, so they get a signature with one parameter for each array. Its names need not be identifiers. XLA keeps
them in the metadata of the parameters, and calls these `model_0_weight.1` or the like; StableHLO as text has numbers.
The displayed text has the original names, written so that both languages accept them: `%adam.exp_avg.3`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Sequence

import jax

RANDOM_KEY = "random_key"
_KEY = re.compile(r"\[(['\"])(.*?)\1\]")
_RUN = re.compile(r"\d+")
_INDEX = re.compile(r"\[(\w+)\]")
_ILLEGAL = re.compile(r"[^\w.-]+")
_ENTRY = re.compile(r"^ENTRY .*?^}", re.MULTILINE | re.DOTALL)
_PARAMETER = re.compile(
    r"^ +%?(\S+) = .* parameter\(\d+\).*op_name=\"((?:[^\"\\]|\\.)*)\"", re.MULTILINE
)
_PARTITIONED = re.compile(r"param(\.\d+)?")
_NAME = re.compile(r"(?<![\w.-])[A-Za-z_][\w-]*(?:\.[\w-]+)*")
_MAIN = re.compile(r"func\.func (?:public )?@main\(.*?\n  }", re.DOTALL)
_ARGUMENT = re.compile(r"%arg(\d+)\b")


class _Named(inspect.Parameter):
    """A positional parameter with a name that need not be an identifier."""

    __slots__ = ("_label",)

    def __init__(self, label: str):
        super().__init__("operand", inspect.Parameter.POSITIONAL_ONLY)
        self._label = label

    @property
    def name(self) -> str:
        return self._label


def name_inputs(function: Callable[..., object], names: Sequence[str]) -> None:
    """Let JAX name the positional arguments of a function like this."""
    parameters = list(map(_Named, distinct(names)))
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by `inspect.signature`


def distinct(names: Sequence[str]) -> list[str]:
    """The names, with a number behind those that occurred before.

    Example:
        >>> distinct(["x", "y", "x"])
        ['x', 'y', 'x_1']
    """
    seen = set(names)
    used: set[str] = set()
    result = []
    for name in names:
        new, number = name, 0
        while new in used or (new != name and new in seen):
            number += 1
            new = f"{name}_{number}"
        used.add(new)
        result.append(new)
    return result


def parameter_names(function: Callable[..., object], count: int) -> list[str]:
    """The names of the first `count` positional arguments of a function.

    Example:
        >>> parameter_names(lambda x, *rest: x, 3)
        ['x', 'rest[0]', 'rest[1]']
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    return (names + [f"{rest}[{i}]" for i in range(count - len(names))])[:count]


def readable(path: str) -> str:
    """A path in Python as a name: string keys are written like attributes.

    Example:
        >>> readable("self.table['w'][0]")
        'self.table.w[0]'
    """
    return _KEY.sub(r".\2", path).lstrip(".")


def stacked(names: Sequence[str]) -> str:
    """A name for a stack of arrays: the first name, with the range of the number that differs.

    Example:
        >>> stacked(["layers.0.weight", "layers.1.weight", "layers.2.weight"])
        'layers.0-2.weight'
    """
    first, last = names[0], names[-1]
    numbers = list(zip(_RUN.finditer(first), _RUN.finditer(last), strict=False))
    differing = [(a, b) for a, b in numbers if a[0] != b[0]]
    if len(differing) != 1 or _RUN.split(first) != _RUN.split(last):
        return first
    a, b = differing[0]
    return f"{first[: a.start()]}{a[0]}-{b[0]}{first[a.end() :]}"


def stablehlo_of(lowered: jax.stages.Lowered, debug_info: bool = False) -> str:
    """The StableHLO of a program, with the names of its inputs in place of `%arg0`."""
    text = lowered.as_text(debug_info=debug_info)
    located = _MAIN.search(text if debug_info else lowered.as_text(debug_info=True))
    main = _MAIN.search(text)
    if located is None or main is None:
        return text
    names = _names_in(located[0].partition("\n")[0])
    taken = set(re.findall(r"%([\w.$-]+)", main[0]))
    legal = legal_names(names.items(), taken)

    def renamed(match: re.Match[str]) -> str:
        number = match[1]
        return f"%{legal[number]}" if number in legal else match[0]

    return text[: main.start()] + _ARGUMENT.sub(renamed, main[0]) + text[main.end() :]


def _names_in(header: str) -> dict[str, str]:
    """The names of the arguments, by their numbers, in the first line of a function with locations."""
    labels = re.findall(r'%arg(\d+): (?:(?!%arg\d).)*?loc\("((?:[^"\\]|\\.)*)"', header)
    return dict(labels)


def hlo_with_names(text: str) -> str:
    """The text of an HLO module, with the original names of its inputs in place of XLA's versions of them."""
    entry = _ENTRY.search(text)
    if entry is None:
        return text
    taken = set(re.findall(r"^ +(?:ROOT )?%?(\S+) = ", text, re.MULTILINE))
    legal = new_names(_PARAMETER.findall(entry[0]), taken)
    if not legal:
        return text
    body = _NAME.sub(lambda m: legal.get(m[0], m[0]), entry[0])
    return text[: entry.start()] + body + text[entry.end() :]


def new_names(parameters: Iterable[tuple[str, str]], taken: Collection[str]) -> dict[str, str]:
    """New names for parameters of an HLO module, by their old ones.

    Args:
        parameters: the old name and the label of each.
        taken: the names of all instructions.
    """
    named = [
        (old, label) for old, label in sorted(parameters) if label and _is_own_label(old, label)
    ]
    return legal_names(named, set(taken) - {old for old, _ in named})


def _is_own_label(name: str, label: str) -> bool:
    """Whether the label of a parameter is its own, and not the `op_name` of another instruction, as `jit(f)/mul`.

    XLA's name consists of the label and a number. Its partitioner, which divides a program over devices, keeps the
    label, but calls each parameter `param`, with a number.
    """
    if _PARTITIONED.fullmatch(name):
        return not label.startswith("jit(")
    return name.startswith(re.sub(r"[^\w-]", "_", label))


def legal_names(labels: Iterable[tuple[str, str]], taken: set[str]) -> dict[str, str]:
    """The labels as names that MLIR and HLO accept, and that are not taken, by their keys."""
    names = {}
    for key, label in labels:
        name = _ILLEGAL.sub("_", _INDEX.sub(r".\1", label)).strip("_.") or "_"
        name = f"_{name}" if name[0].isdigit() else name
        while name in taken:
            name += "_"
        taken.add(name)
        names[key] = name
    return names
