"""The code of a cell under `%%pure` or `%%jit`: its names, its last expression, its lines.

The code is compiled as module-level code, with the file name and line numbers of its cell, and runs in the user's
namespace. So functions defined elsewhere see the names that it sets, functions defined in it behave as usual, and
tracebacks show the cell. The names that it reads and sets are taken from the bytecode, in order.
"""

from __future__ import annotations

import ast
import dis
import types
from collections.abc import Callable
from dataclasses import dataclass

from ..dependencies.reads import names_read

SHOWN = "<the value of the last expression>"  # a name that no cell can use


@dataclass
class CellCode:
    """A cell's code, ready to run.

    Attributes:
        code: the compiled code; the last expression's value is left under the name `SHOWN`.
        tree: what it was compiled from.
        lines: the cell, its first line being the magic's own.
        reads: the names that it reads before it sets them, in order.
        sets: the names that it sets or deletes.
        attributes: the attributes that it reads, of any object.
        star: whether it imports `*`, and so sets names that do not appear in it.
    """

    code: types.CodeType
    tree: ast.Module
    lines: list[str]
    reads: list[str]
    sets: list[str]
    attributes: frozenset[str]
    star: bool

    @property
    def file(self) -> str:
        """The file name that the cell's frames have."""
        return self.code.co_filename

    @property
    def first_line(self) -> int:
        """The line of its first statement."""
        return self.tree.body[0].lineno if self.tree.body else 1

    def line_of(self, name: str) -> int | None:
        """The first line that mentions a name or an attribute."""
        lines = [
            node.lineno
            for node in ast.walk(self.tree)
            if (isinstance(node, ast.Name) and node.id == name)
            or (isinstance(node, ast.Attribute) and node.attr == name)
        ]
        return min(lines, default=None)


def code_of(
    tree: ast.Module, lines: list[str], compiled: Callable[[ast.Module], types.CodeType]
) -> CellCode:
    """The code of a cell.

    Args:
        tree: of its statements, with the line numbers of the cell.
        lines: of the cell, the magic's own first.
        compiled: compiles a tree as the cell's.
    """
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        name = ast.copy_location(ast.Name(SHOWN, ast.Store()), last.value)
        tree.body[-1] = ast.copy_location(ast.Assign([name], last.value), last)
    code = compiled(tree)
    reads, sets = _names(code)
    star = any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in ast.walk(tree))
    return CellCode(code, tree, lines, reads, sets, names_read(code).attributes, star)


def _names(code: types.CodeType) -> tuple[list[str], list[str]]:
    """(read before set, set) of module-level code. Branches and loops are taken to run."""
    reads: dict[str, None] = {}
    sets: dict[str, None] = {}
    functions: dict[
        str, types.CodeType
    ] = {}  # defined here: read what they read when they are named
    pending: types.CodeType | None = None

    def read(name: str) -> None:
        if name in functions:
            for inner in names_read(functions.pop(name)).globals:
                read(inner)
        elif name not in sets:
            reads[name] = None

    for instruction in dis.get_instructions(code):
        operation, value = instruction.opname, instruction.argval
        if isinstance(value, types.CodeType):
            pending = value
            continue
        if operation in ("MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE"):  # 3.13 gives defaults by it
            continue
        if pending is not None:
            if operation == "STORE_NAME":
                functions[value] = pending
            else:  # a comprehension, a lambda, a class or a decorated function: taken to run here
                for inner in names_read(pending).globals:
                    read(inner)
            pending = None
        if operation == "SETUP_ANNOTATIONS":
            sets["__annotations__"] = None
        elif operation in ("LOAD_NAME", "LOAD_GLOBAL"):
            read(value)
        elif operation in ("STORE_NAME", "STORE_GLOBAL", "DELETE_NAME"):
            if operation == "DELETE_NAME":
                read(value)
            sets[value] = None
    for inner in _global_sets(code):
        sets[inner] = None
    sets.pop(SHOWN, None)
    return list(reads), list(sets)


def _global_sets(code: types.CodeType) -> list[str]:
    """Names that functions and comprehensions inside the code set outside of themselves."""
    found: list[str] = []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found += [
                i.argval for i in dis.get_instructions(constant) if i.opname == "STORE_GLOBAL"
            ]
            found += _global_sets(constant)
    return found
