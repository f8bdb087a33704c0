"""Finds the closure variables of a running function.

A frame has the values of its closure variables but not their cells, which a guard needs to read them again. The cells
belong to the function object, which a frame does not reference. So functions with a closure are noted when the code
reads them; a function that was never read is found among the referrers of its code object. Several functions may share
one code object; the running one is identified by the values of its variables.
"""

from __future__ import annotations

import gc
import types

from .fetch import ClosureFetch, Fetch, contents_of
from .tokens import MISSING


class Closures:
    """The functions that may run while one program is traced, by their code.

    Attributes:
        internal: code of functions that the traced code creates or receives: their variables are not dependencies.
    """

    def __init__(self) -> None:
        self.internal: set[types.CodeType] = set()
        self._functions: dict[types.CodeType, list[types.FunctionType]] = {}
        self._searched: set[types.CodeType] = set()
        self._fetches: dict[int, Fetch] = {}

    def add(self, function: types.FunctionType) -> None:
        """Note a function that may run."""
        if function.__closure__:
            known = self._functions.setdefault(function.__code__, [])
            if function not in known:
                known.append(function)

    def cells_of(self, frame: types.FrameType, name: str) -> list[types.CellType]:
        """The cells of a variable that a running function reads; none if the traced code created the function.

        If several functions with this code hold the same values, any of them may be the running one: the cells of all
        are returned.
        """
        code = frame.f_code
        if code in self.internal:
            return []
        functions = self._matching(code, frame.f_locals)
        if not functions and code not in self._searched:
            self._searched.add(code)
            for referrer in gc.get_referrers(code):
                if isinstance(referrer, types.FunctionType) and referrer.__code__ is code:
                    self.add(referrer)
            functions = self._matching(code, frame.f_locals)
        index, cells = code.co_freevars.index(name), []
        for function in functions:
            cell = (function.__closure__ or ())[index]
            self._fetches[id(cell)] = ClosureFetch(function, index)
            cells.append(cell)
        return cells

    def _matching(
        self, code: types.CodeType, variables: dict[str, object]
    ) -> list[types.FunctionType]:
        """The functions whose closures hold the values of a frame's variables."""
        return [
            function
            for function in self._functions.get(code, ())
            if all(
                contents_of(cell) is variables.get(name, MISSING)
                for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
            )
        ]

    def fetch_of(self, cell: types.CellType) -> Fetch:
        """The fetch of a cell that `cells_of` returned."""
        return self._fetches[id(cell)]
