"""Finds the closure variables of a running function.

A frame has the values of its closure variables but not their cells, which a guard needs to read them again. The cells
belong to the function object.
"""

from __future__ import annotations

import types

from ...base.running_function import function_of
from .fetch import ClosureFetch, Fetch


class Closures:
    """The cells of the functions that run while one program is traced.

    Attributes:
        internal: code of functions that the traced code creates or receives: their variables are not dependencies.
    """

    def __init__(self) -> None:
        self.internal: set[types.CodeType] = set()

    def variable_of(self, frame: types.FrameType, name: str) -> tuple[types.CellType, Fetch] | None:
        """The cell of a variable that a running function reads, and how to find it again.

        None if the traced code created the function.
        """
        code = frame.f_code
        function = None if code in self.internal else function_of(frame)
        if function is None:
            return None
        index = code.co_freevars.index(name)
        return (function.__closure__ or ())[index], ClosureFetch(function, index)
