"""The place where deferred execution attaches (`deferred/`): calls are offered to a recorder instead of being run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..storage.buffer import Buffer

if TYPE_CHECKING:
    from .call import Call
    from .numbers import KindedNumber
    from .operation import Operation
    from .program import Program


class Recorder(Protocol):
    """Records calls. Both methods return `NotImplemented` for a call that is to run now."""

    def simple(
        self,
        program: Program,
        buffers: Sequence[Buffer],
        args: Sequence[Any],
        number: KindedNumber | None,
    ) -> Any:
        """A call of a program with `recordable` set.

        Args:
            buffers: those of the tensors, which come first among `args`.
            number: the last argument, after its kind, if it is a number.
        """

    def forget_windows(self) -> None:
        """Drop the programs that it keeps."""

    def call(self, operation: Operation, program: Program, call: Call) -> Any:
        """Any other call."""


# The recorder while execution is deferred.
recorder: Recorder | None = None
