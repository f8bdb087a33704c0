"""The place where deferred execution attaches (`deferred/`): calls are offered to a recorder instead of being run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from ..programs.program_cache import Key
from .schema import Arguments

if TYPE_CHECKING:
    from .call import Call
    from .operation import Operation
    from .program import Program


class Recorder(Protocol):
    """Records calls. Both methods return `NotImplemented` for a call that is to run now."""

    def hot(
        self, args: Arguments, programs: Mapping[Key, Program], numeric: Collection[int]
    ) -> object:
        """A call of tensors, and at most one number after them.

        Args:
            programs: those of the operator, by the key of a call.
            numeric: indices of the arguments for which a number is an operand.
        """

    def call(self, operation: Operation, program: Program, call: Call) -> object:
        """Any other call."""

    def clear_cache(self) -> None:
        """Drop the programs that it keeps."""


# The recorder while execution is deferred.
recorder: Recorder | None = None
