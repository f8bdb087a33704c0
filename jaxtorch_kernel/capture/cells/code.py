"""The code of a cell under `%%pure` or `%%jit`: its names, its last expression, its lines.

The code is compiled as module-level code, with the file name and line numbers of its cell, and runs in the user's
namespace. So functions defined elsewhere see the names that it assigns, functions defined in it behave as usual, and
tracebacks show the cell. The names that it reads and assigns are taken from the bytecode, in order.
"""

from __future__ import annotations

import ast
import dis
import types
from collections.abc import Callable
from dataclasses import dataclass

from ..dependencies.reads import names_read

LAST_VALUE = "<the value of the last expression>"  # a name that no cell can use


@dataclass
class CellCode:
    """A cell's code, ready to run.

    Attributes:
        code: the compiled code, which assigns the value of the last expression to the name `LAST_VALUE`.
        tree: the syntax tree of the code.
        lines: the lines of the cell; the first is the magic's own.
        reads: the names that it reads before it assigns them, in order.
        sets: the names that it assigns or deletes.
        attributes: the attributes that it reads, of any object.
        star: whether it imports `*`, and so assigns names that do not appear in it.
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
        """The file name in the cell's frames."""
        return self.code.co_filename

    @property
    def first_line(self) -> int:
        """The line of its first statement."""
        return self.tree.body[0].lineno if self.tree.body else 1

    @property
    def title(self) -> str:
        """Its first statement's first line, by which a table calls the cell."""
        return self.lines[self.first_line - 1].strip() if self.tree.body else ""

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
        tree: the syntax tree of its statements, with the line numbers of the cell.
        lines: the lines of the cell; the first is the magic's own.
        compiled: compiles a syntax tree under the file name of the cell.
    """
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        name = ast.copy_location(ast.Name(LAST_VALUE, ast.Store()), last.value)
        tree.body[-1] = ast.copy_location(ast.Assign([name], last.value), last)
    code = compiled(tree)
    reads, sets = _names(code)
    star = any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in ast.walk(tree))
    return CellCode(code, tree, lines, reads, sets, names_read(code).attributes, star)


def _names(code: types.CodeType) -> tuple[list[str], list[str]]:
    """(names read before they are assigned, names assigned) in module-level code.

    Branches and loops are assumed to run.
    """
    reads: dict[str, None] = {}
    sets: dict[str, None] = {}
    # Functions defined here. What they read counts as read where their name is first used.
    functions: dict[str, types.CodeType] = {}
    pending: types.CodeType | None = None  # loaded, and not yet made a function

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
        if operation in (
            "MAKE_FUNCTION",
            "SET_FUNCTION_ATTRIBUTE",
        ):  # Python 3.13 sets defaults with it
            continue
        if pending is not None:
            if operation == "STORE_NAME":
                functions[value] = pending
            else:  # a comprehension, a lambda, a class or a decorated function: assumed to run here
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
    sets.pop(LAST_VALUE, None)
    return list(reads), list(sets)


def _global_sets(code: types.CodeType) -> list[str]:
    """The globals that functions and comprehensions inside the code assign."""
    names: list[str] = []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += [
                i.argval for i in dis.get_instructions(constant) if i.opname == "STORE_GLOBAL"
            ]
            names += _global_sets(constant)
    return names
