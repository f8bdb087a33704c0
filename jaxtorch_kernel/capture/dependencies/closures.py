"""Which variables the closure of a running function has.

A frame tells what its closure's variables hold, but not the cells that hold them, which a guard needs to read them
again. The cells hang on the function object, which no frame names. So functions with a closure are noted when the code
reads them; one that was never read is found among the objects that refer to its code. Several functions may share one
code; the one that runs is told by what its variables hold.
"""

from __future__ import annotations

import gc
import types
from typing import Any

from .fetch import Fetch, contents_of
from .guard import ClosureFetch
from .tokens import MISSING


class Closures:
    """The functions that may run while one program is traced, by their code.

    Attributes:
        inside: code of functions that the traced code makes itself, or is handed: their variables are no dependency.
    """

    def __init__(self) -> None:
        self.inside: set[types.CodeType] = set()
        self._functions: dict[types.CodeType, list[types.FunctionType]] = {}
        self._fetches: dict[int, Fetch] = {}

    def add(self, function: types.FunctionType) -> None:
        """A function that may run."""
        if function.__closure__:
            known = self._functions.setdefault(function.__code__, [])
            if function not in known:
                known.append(function)

    def cell_of(self, frame: types.FrameType, name: str) -> Any:
        """The variable that a running function reads, as its cell; None for a function that the traced code made."""
        code = frame.f_code
        if code in self.inside:
            return None
        place = code.co_freevars.index(name)
        functions = self._functions.get(code)
        if functions is None:
            referrers = gc.get_referrers(code)
            functions = [
                f for f in referrers if isinstance(f, types.FunctionType) and f.__code__ is code
            ]
            self._functions[code] = functions
        here = frame.f_locals.get(name, MISSING)
        for function in functions:
            cell = (function.__closure__ or ())[place]
            if contents_of(cell) is here:
                self._fetches[id(cell)] = ClosureFetch(function, place)
                return cell
        return None

    def fetch_of(self, cell: Any) -> Fetch:
        """How a variable that `cell_of` gave is found again."""
        return self._fetches[id(cell)]
