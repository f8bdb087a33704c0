"""Checks of values: indices, class targets and probabilities (`config(check="indices")`).

A check is a separate program that runs before the operator and returns two numbers: the first requirement that fails
(0: none), and the value that fails it. In eager mode they are read immediately, so nothing has been written when the
error is raised. Captured code cannot read them: the program notifies the host through a debug callback, and the error
is raised at the next point that waits for values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..base.options import Options
from ..base.torch_private import OpOverload
from ..lowerings.registry import Lowering
from ..lowerings.value_checks import ALWAYS, CHECKS, Condition
from ..programs import tracing
from ..programs.site import user_line
from ..programs.trees import is_tensor, split_jax
from ..storage.buffer import buffer_of
from ..storage.dtypes import to_numpy
from .schema import Arguments, Kernel, short_name

# The errors that captured programs reported and that are not raised yet.
_reported: list[Exception] = []
_captured = False  # whether a captured program may report errors


class ValueChecks:
    """The check of one operator's values.

    Args:
        op: the functional overload.
        make: makes the `Operation` that runs a lowering for an overload.
    """

    def __init__(self, op: OpOverload, make: Callable[[OpOverload, Lowering], Kernel]):
        name = short_name(op)
        self.always = name in ALWAYS
        self.requirements = CHECKS[name]
        self.run = make(op, Lowering(self._first_failure, meta=False))

    def wanted(self, options: Options) -> bool:
        """Whether these options request the check for a call made now."""
        return options.check == "indices" or (self.always and not tracing.active())

    def wanted_eagerly(self, options: Options) -> bool:
        """Whether these options request the check outside of traces."""
        return options.check == "indices" or self.always

    def check(self, args: Arguments) -> None:
        """Raise the CPU's error for values that it refuses; in captured code let the program report it."""
        global _captured
        with torch.no_grad():
            result = self.run(*args)
        array = buffer_of(result[0] if isinstance(result, tuple) else result).array
        line = user_line()
        if isinstance(array, jax.core.Tracer):
            conditions = self._conditions(args)
            _captured = True
            jax.debug.callback(lambda failure: _report(_error(conditions, failure, line)), array)
            return
        failure = np.asarray(array)
        if failure[0] and (error := _error(self._conditions(args), failure, line)) is not None:
            raise error

    def _first_failure(self, *args: Any) -> jax.Array:
        """The number (from 1) of the first requirement that fails, or 0, and the value that fails it."""
        result = jnp.zeros(2, np.float64)
        for number, condition in reversed(list(enumerate(self.requirements(*args), 1))):
            if condition.holds.size:
                failed = ~condition.holds.reshape(-1)
                value = condition.values.reshape(-1)[jnp.argmax(failed)].astype(np.float64)
                failure = jnp.stack([jnp.full((), number, np.float64), value])
                result = jnp.where(failed.any(), failure, result)
        return result

    def _conditions(self, args: Arguments) -> list[Condition]:
        """The requirements, with abstract values."""
        tensors, tree = split_jax(args, is_tensor)
        shapes = [jax.ShapeDtypeStruct(t.shape, to_numpy(t.dtype)) for t in tensors]
        conditions: list[Condition] = []

        def run(*arrays: jax.Array) -> None:
            conditions.extend(self.requirements(*tree.filled(arrays)))

        with jax.enable_x64(True):
            jax.eval_shape(run, *shapes)
        return conditions


def _error(conditions: list[Condition], failure: np.ndarray, line: str) -> Exception | None:
    number, value = int(failure[0]), float(failure[1])
    if not number:
        return None
    condition = conditions[number - 1]
    shown = int(value) if condition.values.dtype.kind in "iu" else value
    return condition.error(condition.text.replace("{value}", str(shown)) + line)


def _report(error: Exception | None) -> None:
    if error is not None:
        _reported.append(error)


def raise_reported() -> None:
    """Raise the first error that a captured program reported. Called wherever values are waited for."""
    if _captured:
        jax.effects_barrier()
        if _reported:
            error = _reported[0]
            _reported.clear()
            raise error
