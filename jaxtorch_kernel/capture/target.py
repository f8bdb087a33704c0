"""`target`: the session's captured programs are compiled for another chip, too.

Programs go on running where they run. Each that is compiled while a target is set is requested for it as well
(`background.py`). The results are kept by program and target, the latest ones.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from types import TracebackType
from typing import overload

from ..programs import compiling
from ..programs.stats import ProgramRecord
from .background import background
from .layouts import check_target
from .target_program import TargetProgram
from .tpu import libtpu_folder, shared
from .tpu_chips import Chip, chip_of

_MOST_RESULTS = 128

_results: OrderedDict[tuple[ProgramRecord, str], TargetProgram] = OrderedDict()


class Target:
    """A chip for which the session's captured programs are compiled too; from `jaxtorch.target`.

    Attributes:
        name: the topology, such as "v5e:2x4".
    """

    def __init__(self, name: str):
        self.name = name
        # What was set before each open block of this target, the innermost last.
        self._before: list[Target | None] = []
        self._is_new = False  # whether `target` has set it and no block has begun

    @property
    def chip(self) -> Chip:
        """Its chip, with memory and peak rates."""
        return chip_of(self.name)

    @property
    def programs(self) -> list[TargetProgram]:
        """The programs that were requested for it, in the order in which the session compiled them."""
        return [program for program in results() if program.target == self.name]

    def wait(self) -> list[TargetProgram]:
        """Wait until all requested programs are compiled for it; Ctrl-C cancels. Returns `programs`."""
        background.wait(self.programs)
        return self.programs

    def __enter__(self) -> Target:
        if not (self._is_new and _current is self):  # it may have ended since
            self._before.append(_current)
            _set(self)
        self._is_new = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _set(self._before.pop())

    def __repr__(self) -> str:
        return f"jaxtorch.target({self.name!r})"


_current: Target | None = None


@overload
def target(name: str) -> Target: ...


@overload
def target(name: None) -> None: ...


def target(name: str | None) -> Target | None:
    """Also compile the programs of captured code for a TPU, in the background. They still run on the session's device.

    From now on, or within a `with` block, each program that `pure`, `jit`, `scan`, `torch.compile` and the cell magics
    compile is also compiled by libtpu for this target. The session does not wait for it, and its errors break nothing:
    they are in the result. A pass with gradients is two programs, as in the session: the forward program, which returns
    the residuals, and the backward program. If the session's tensors are sharded over a mesh with as many devices as
    the target, the program is compiled for that mesh, otherwise for one chip of the target.

    Args:
        name: a TPU topology such as "v5e:1x1" or "v5e:2x4". None removes the target and cancels the programs that are
            not compiled yet.

    Returns:
        A `Target`. `.programs` has the results so far, and `.wait()` waits for all of them. As a context manager, it
        restores the previous target at the end.

    Raises:
        CompileError: libtpu is not installed.
        ValueError: `name` is not a TPU topology.

    Example:
        >>> import torch, jaxtorch
        >>> with jaxtorch.target("v5e:1x1") as v5e:                    # doctest: +SKIP
        ...     jaxtorch.pure(lambda x: x @ x)(torch.ones(128, 128, device="jax"))
        >>> v5e.wait()[0].executable.memory_analysis().peak_memory_in_bytes  # doctest: +SKIP
        196608
    """
    if name is None:
        _set(None)
        background.cancel()
        shared.close()
        return None
    check_target(name)
    libtpu_folder()
    new = Target(name)
    new._before.append(_current)
    new._is_new = True
    _set(new)
    return new


def current_target() -> Target | None:
    """The target that is set, or None."""
    return _current


def request(record: ProgramRecord, name: str) -> TargetProgram:
    """The result of a program for a target; it is requested if it was not, or if it was cancelled."""
    key = record, name
    found = _results.get(key)
    if found is not None and found.state not in ("cancelled", "dropped"):
        return found
    program = _results[key] = TargetProgram(record, name)
    _results.move_to_end(key)
    while len(_results) > _MOST_RESULTS:
        _results.popitem(last=False)
    background.submit(program)
    return program


def results() -> list[TargetProgram]:
    """All results that are kept, in the order of their programs."""
    return sorted(_results.values(), key=lambda program: program.record.id)


def _set(new: Target | None) -> None:
    global _current
    _current = new
    compiling.on_compiled = None if new is None else _on_compiled


def _on_compiled(record: ProgramRecord) -> None:
    if _current is not None:
        request(record, _current.name)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _set(None))
