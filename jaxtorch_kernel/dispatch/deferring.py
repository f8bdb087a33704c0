"""The hook for deferred execution (`deferred/`): calls are offered to a recorder instead of being run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ..storage.buffer import Buffer
from .schema import Arguments

if TYPE_CHECKING:
    from .call import Call
    from .operation import Operation
    from .program import Program


class Recorder(Protocol):
    """Records calls. Both methods return `NotImplemented` for a call that is to run now."""

    def hot(
        self, program: Program, args: Arguments, buffers: Sequence[Buffer], letter: str | None
    ) -> object:
        """A call of tensors, and at most one number after them.

        Args:
            program: found by the key of the call.
            buffers: those of the tensors.
            letter: the kind of the number, if there is one.
        """

    def call(self, operation: Operation, program: Program, call: Call) -> object:
        """Any other call."""

    def clear_cache(self) -> None:
        """Drop the programs that it keeps."""


# The recorder while execution is deferred.
recorder: Recorder | None = None
