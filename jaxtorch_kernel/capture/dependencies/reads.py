"""What code reads and writes, from its bytecode: chains such as `cfg.model.scale` or `table['lr']`.

A chain begins at a name from outside the code (a global, a closure variable, an imported module) or at an argument, and
continues through attributes and items with constant keys. Any other use (an item with a computed key, a call) ends the
chain, and the object at its end counts as read in full.

`_Scan` goes through the instructions once. Each instruction that loads the root of a chain starts one; the instructions
that follow it extend the chain as long as they load an attribute or a constant item. A local variable that is assigned
once, from the end of a chain, is an alias of that chain.
"""

from __future__ import annotations

import dis
import functools
import itertools
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

ATTRIBUTE, ITEM = "attribute", "item"
GLOBAL, CLOSURE, ARGUMENT, IMPORT = "global", "closure", "argument", "import"

_SKIPPED = {"CACHE", "EXTENDED_ARG", "NOP", "PUSH_NULL", "PRECALL", "RESUME", "NOT_TAKEN"}
_ARGUMENTS = {"LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"}
_STORES = ("STORE_FAST", "STORE_NAME")
_PAIRS = {"LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"}
_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME"}
_CLOSURES = {"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}
_CONSTANTS = {"LOAD_CONST", "LOAD_SMALL_INT"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
_LOADS = ("LOAD_", "IMPORT_")
_LOADS_OF_VALUES = ("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_FAST", "LOAD_CLOSURE")
# Code that uses one of these names may clear a leaf's `.grad`.
_SET_GRADIENTS = frozenset({"zero_grad", "setattr", "__setattr__"})
_MODULES_WITH_GRAD = ("autograd", "func", "jax", "torch")
# Code that uses one of these names reads attributes that its bytecode does not show.
# Code of its own for a generator expression and, before Python 3.12, for every comprehension.
_EXPRESSIONS = frozenset(("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"))
_DYNAMIC = frozenset(
    (
        "getattr",
        "hasattr",
        "vars",
        "dir",
        "globals",
        "__dict__",
        "asdict",
        "astuple",
        "fields",
        "attrgetter",
        "deepcopy",
        "copy",
        "dumps",
        "import_module",
        "__import__",
        "getmembers",
        "setattr",
        "delattr",
    )
)


class Chain(NamedTuple):
    """One path that code reads.

    Attributes:
        root: GLOBAL, CLOSURE, ARGUMENT or IMPORT.
        name: of the root.
        steps: (ATTRIBUTE, name) or (ITEM, key), in order.
        line: in the file of the code.
    """

    root: str
    name: str
    steps: tuple[tuple[str, Any], ...]
    line: int | None

    def __str__(self) -> str:
        return self.name + "".join(f".{s}" if k is ATTRIBUTE else f"[{s!r}]" for k, s in self.steps)


class Increment(NamedTuple):
    """`target += by`, if the statement does not use the value otherwise."""

    target: Chain
    by: int | float


class Reads(NamedTuple):
    """What one code object reads and writes.

    Attributes:
        chains: what it reads.
        stores: what it assigns or deletes: `global n`, `self.n = ...`, `table['n'] = ...`.
        increments: what it increments by a constant.
        names: every name and attribute that it reads.
        dynamic: whether it reads attributes whose names it computes.
        strings: its constants that could be names of attributes or globals, if it is dynamic.
        gradients: whether it may read a leaf's `.grad`, or set it.
    """

    chains: tuple[Chain, ...]
    stores: tuple[Chain, ...]
    increments: tuple[Increment, ...]
    names: frozenset[str]
    dynamic: bool
    strings: tuple[str, ...]
    gradients: bool


@functools.lru_cache(8192)
def reads_of(code: types.CodeType) -> Reads:
    """What a code object reads and writes.

    For the code inside it (lambdas, comprehensions), what that does with the closure variables of this code object.

    Example:
        >>> from jaxtorch.capture.dependencies.reads import reads_of
        >>> def f(x):
        ...     return x * cfg.scale + table["lr"]
        >>> [str(chain) for chain in reads_of(f.__code__).chains]
        ['x', 'cfg.scale', "table['lr']"]
    """
    return _Scan(code).result()


class _Scan:
    """One pass over the instructions of a code object."""

    def __init__(self, code: types.CodeType):
        self.code = code
        self.instructions = _instructions(code)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        extra = bool(code.co_flags & 4) + bool(code.co_flags & 8)  # *args, **kwargs
        names += code.co_varnames[len(names) : len(names) + extra]
        stored = {i.argval for i in self.instructions if i.opname in ("STORE_FAST", "DELETE_FAST")}
        self.arguments = frozenset(names) - stored
        # Variables that are assigned once: if it is from the end of a chain, they are aliases of that chain.
        assigned = [i.argval for i in self.instructions if i.opname in _STORES]
        self.once = {name for name in assigned if assigned.count(name) == 1} - set(names)
        self.aliases: dict[str, Chain] = {}
        self.chains: dict[Chain, None] = {}
        self.stores: dict[Chain, None] = {}
        self.increments: list[Increment] = []
        self.incremented: set[int] = set()  # indices of the loads in `obj.n += 1`
        self.assigned: set[str] = set()  # the names that module-level code has assigned so far

    def result(self) -> Reads:
        i = 0
        while i < len(self.instructions):
            i = self._statement(i)
        inner = [c for c in self.code.co_consts if isinstance(c, types.CodeType)]
        for code in inner:
            self._add_inner(reads_of(code))
        # They get the elements of what this code reads.
        expressions = [reads_of(code) for code in inner if code.co_name in _EXPRESSIONS]
        mentioned = {*self._loaded(), *self.code.co_freevars}
        # A class pattern with positions reads the attributes that the `__match_args__` of the class names.
        patterns = any(i.opname == "MATCH_CLASS" for i in self.instructions)
        dynamic = patterns or not _DYNAMIC.isdisjoint(mentioned)
        dynamic |= any(reads.dynamic for reads in expressions)
        constants = itertools.chain(
            self.code.co_consts if dynamic else (), *(r.strings for r in expressions)
        )
        strings = tuple(c for c in constants if isinstance(c, str) and c.isidentifier())
        return Reads(
            tuple(self.chains),
            tuple(self.stores),
            tuple(self.increments),
            frozenset(mentioned),
            dynamic,
            strings,
            not _SET_GRADIENTS.isdisjoint(mentioned) or "grad" in strings or self._has_grad(),
        )

    def _add_inner(self, inner: Reads) -> None:
        """Add what inner code does with the closure variables of this code."""

        def is_shared(chain: Chain) -> bool:
            return chain.root is CLOSURE and chain.name in self.code.co_freevars

        self.chains.update(dict.fromkeys(filter(is_shared, inner.chains)))
        self.stores.update(dict.fromkeys(filter(is_shared, inner.stores)))
        self.increments += [i for i in inner.increments if is_shared(i.target)]

    def _loaded(self) -> Iterator[str]:
        """The names that it reads, without those that it only assigns or increments."""
        for i, instruction in enumerate(self.instructions):
            name = instruction.argval
            opname = instruction.opname
            if opname.startswith(_LOADS) and not opname.startswith(_LOADS_OF_VALUES):
                if i not in self.incremented and isinstance(name, str):
                    yield name
            elif instruction.opname == "MATCH_CLASS" and i:
                yield from self.instructions[i - 1].argval

    def _has_grad(self) -> bool:
        """Whether it reads or sets an attribute `grad` of anything but a Python module with a function of that name."""
        return any(
            now.argval == "grad"
            and now.opname.endswith(("_ATTR", "_METHOD"))
            and before.argval not in _MODULES_WITH_GRAD
            for before, now in itertools.pairwise(self.instructions)
        )

    def _statement(self, i: int) -> int:
        """Interpret one instruction, and those that continue its chain; returns the index of the next one."""
        instruction = self.instructions[i]
        name, value = instruction.opname, instruction.argval
        if name in _PAIRS:
            for root in value[:1]:
                self._end(self._root(ARGUMENT, root, i))
            return self._chain(self._root(ARGUMENT, value[1], i), i + 1)
        if name in _ARGUMENTS:
            return self._chain(self._root(ARGUMENT, value, i), i + 1)
        if name == "IMPORT_NAME":
            return self._import(self._root(IMPORT, value, i), i + 1)
        if name in _GLOBALS:
            if value in self.assigned:  # by this code: its own value, or an alias
                return self._chain(self.aliases.get(value), i + 1)
            if value == "type" and self._is(i + 1, *_ARGUMENTS) and self._is(i + 2, "CALL"):
                owner = self._root(ARGUMENT, self.instructions[i + 1].argval, i)
                if self.instructions[i + 2].argval == 1:  # `type(self)`
                    return self._chain(_extended(owner, ATTRIBUTE, "__class__"), i + 3)
            return self._chain(self._root(GLOBAL, value, i), i + 1)
        if name in _CLOSURES:
            root = self._root(CLOSURE, value, i) if value in self.code.co_freevars else None
            return self._chain(root, i + 1)
        if name in ("STORE_NAME", "DELETE_NAME"):
            self.assigned.add(value)
        if name in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            self._store(self._root(GLOBAL, value, i))
        elif name in ("STORE_DEREF", "DELETE_DEREF") and value in self.code.co_freevars:
            self._store(self._root(CLOSURE, value, i))
        return i + 1

    def _root(self, kind: str, name: str, i: int) -> Chain | None:
        if kind is ARGUMENT and name in self.aliases:
            return self.aliases[name]
        if kind is ARGUMENT and name not in self.arguments:
            return None
        return Chain(kind, name, (), self.instructions[i].line)

    def _chain(self, chain: Chain | None, i: int) -> int:
        """Follow the instructions after a value is loaded; returns the index of the next one."""
        after = self._increment_of_name(chain, i)
        if after is not None:
            return after
        while i < len(self.instructions):
            name, value = self.instructions[i].opname, self.instructions[i].argval
            if name in _ATTRIBUTES:
                chain = _extended(chain, ATTRIBUTE, value)
            elif name in _CONSTANTS and self._is(i + 1, "BINARY_SUBSCR", "[]"):
                chain = _extended(chain, ITEM, value)
                i += 1
            elif name == "COPY" and self._is(i + 1, *_ATTRIBUTES):
                return self._increment_of_attribute(chain, i)
            elif name in ("STORE_ATTR", "DELETE_ATTR"):
                self._store(_extended(chain, ATTRIBUTE, value))
                return i + 1
            elif name in _CONSTANTS and self._is(i + 1, "STORE_SUBSCR", "DELETE_SUBSCR"):
                self._store(_extended(chain, ITEM, value))
                return i + 2
            else:
                break
            i += 1
        if chain is not None and self._is(i, *_STORES) and self.instructions[i].argval in self.once:
            self.aliases[self.instructions[i].argval] = chain
        self._end(chain)
        return i

    def _import(self, module: Chain | None, i: int) -> int:
        """After `import a.b`, or `from a import b, c`."""
        if self._is(i, "IMPORT_FROM"):
            while self._is(i, "IMPORT_FROM"):
                self._chain(_extended(module, ATTRIBUTE, self.instructions[i].argval), i + 1)
                i += 2  # the import, and the store under a name
            return i
        return self._chain(module, i)

    def _is(self, i: int, *names: str) -> bool:
        if i >= len(self.instructions):
            return False
        instruction = self.instructions[i]
        name = instruction.opname
        return name in names or (name == "BINARY_OP" and instruction.argrepr in names)

    def _increment_of_name(self, chain: Chain | None, i: int) -> int | None:
        """After the load in `n += 1`: the index after the statement; None if it is another statement."""
        if chain is None or chain.root is ARGUMENT or not self._adds(i):
            return None
        stores = ("STORE_GLOBAL",) if chain.root is GLOBAL else ("STORE_DEREF",)
        if not self._is(i + 2, *stores) or self.instructions[i + 2].argval != chain.name:
            return None
        self._increment(chain, i)
        return i + 3

    def _increment_of_attribute(self, chain: Chain | None, i: int) -> int:
        """At the COPY in `obj.n += value`."""
        name = self.instructions[i + 1].argval
        target = _extended(chain, ATTRIBUTE, name)
        simple = self._adds(i + 2) and self._is(i + 4, "SWAP") and self._is(i + 5, "STORE_ATTR")
        if simple:
            self._increment(target, i + 2)
            self.incremented.add(i + 1)
            return i + 6
        self._end(target)
        self._store(target)
        return i + 2

    def _adds(self, i: int) -> bool:
        return (
            self._is(i, *_CONSTANTS)
            and self._is(i + 1, "+=", "-=")
            and type(self.instructions[i].argval) in (int, float)
        )

    def _increment(self, target: Chain | None, i: int) -> None:
        if target is not None:
            by = self.instructions[i].argval
            by = by if self._is(i + 1, "+=") else -by
            self.increments.append(Increment(target, by))

    def _end(self, chain: Chain | None) -> None:
        if chain is not None:
            self.chains.setdefault(chain)

    def _store(self, chain: Chain | None) -> None:
        if chain is not None:
            self.stores.setdefault(chain)


class _Instruction(NamedTuple):
    """An instruction, as `dis.Instruction` has it, and its line."""

    opname: str
    argval: Any
    argrepr: str
    line: int | None


def _instructions(code: types.CodeType) -> list[_Instruction]:
    instructions = []
    for i in dis.get_instructions(code):
        if i.opname not in _SKIPPED:
            line = i.positions.lineno if i.positions is not None else None
            instructions.append(_Instruction(i.opname, i.argval, i.argrepr, line))
    return instructions


def _extended(chain: Chain | None, kind: str, key: Any) -> Chain | None:
    return None if chain is None else chain._replace(steps=(*chain.steps, (kind, key)))


class Names(NamedTuple):
    """The names that code reads: globals, and attributes of any object."""

    globals: tuple[str, ...]
    attributes: frozenset[str]


@functools.lru_cache(4096)
def names_read(code: types.CodeType) -> Names:
    """The global names and the attributes that code, and the code inside it, reads.

    Example:
        >>> from jaxtorch.capture.dependencies.reads import names_read
        >>> sorted(names_read(compile("y = [f(x).real for _ in z]", "", "exec")).globals)
        ['f', 'x', 'z']
    """
    names: dict[str, None] = {}
    attributes: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
            names[instruction.argval] = None
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            attributes.add(instruction.argval)
        elif isinstance(instruction.argval, types.CodeType):
            inner = names_read(instruction.argval)
            names.update(dict.fromkeys(inner.globals))
            attributes |= inner.attributes
    return Names(tuple(names), frozenset(attributes))


_FILLING_METHODS = frozenset(
    ("append", "appendleft", "extend", "insert", "update", "add", "setdefault", "pop", "clear")
)


def names_filled(code: types.CodeType) -> frozenset[str]:
    """The globals whose containers the code fills.

    Example:
        >>> from jaxtorch.capture.dependencies.reads import names_filled
        >>> sorted(names_filled(compile("a.append(1); b['k'] = 2; c.d.add(3); e[0]", "", "exec")))
        ['a', 'b', 'c']
    """
    reads = reads_of(code)
    filled = [c for c in reads.stores if c.steps and c.steps[-1][0] is ITEM]
    filled += [c for c in reads.chains if c.steps and c.steps[-1][1] in _FILLING_METHODS]
    return frozenset(chain.name for chain in filled if chain.root is GLOBAL)
