"""Checks of values: indices, class targets and probabilities (`config(check="indices")`).

A check is a separate program that runs before the operator and returns two numbers: which requirement fails (0: none),
and for which value. In eager mode they are read immediately, so nothing has been written when the error is raised.
Captured code cannot read them: the program notifies the host through a debug callback, and the error is raised at the
next point that waits for values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..base.options import Options
from ..lowerings.registry import Lowering
from ..lowerings.value_checks import ALWAYS, CHECKS, Condition
from ..programs import tracing
from ..programs.site import user_line
from ..programs.trees import is_tensor, split_jax
from ..storage.buffer import buffer_of
from ..storage.dtypes import to_numpy
from .schema import short_name

# What captured programs complained of, until somebody waits for values.
_noted: list[Exception] = []
_captured = False  # whether there is a program that may complain


class Checking:
    """The check of one operator's values.

    Args:
        op: the functional overload.
        make: makes the operation that runs a lowering for an overload; its class is above this module.
    """

    def __init__(
        self,
        op: torch._ops.OpOverload,
        make: Callable[[torch._ops.OpOverload, Lowering], Callable[..., Any]],
    ):
        name = short_name(op)
        self.always = name in ALWAYS
        self.requirements = CHECKS[name]
        self.run = make(op, Lowering(self._first_failure, meta=False))

    def wanted(self, options: Options) -> bool:
        """Whether these options ask for it, of a call that is made now."""
        return options.check == "indices" or (self.always and not tracing.active())

    def wanted_eagerly(self, options: Options) -> bool:
        """Whether these options ask for it outside of traces."""
        return options.check == "indices" or self.always

    def check(self, args: tuple[Any, ...]) -> None:
        """Raise the CPU's error for values that it does not take; in captured code let the program note it."""
        global _captured
        with torch.no_grad():
            found = self.run(*args)
        array = buffer_of(found[0] if isinstance(found, tuple) else found).array
        line = user_line()
        if isinstance(array, jax.core.Tracer):
            conditions = self._conditions(args)
            _captured = True
            jax.debug.callback(lambda values: _note(_error(conditions, values, line)), array)
            return
        found = np.asarray(array)
        if found[0] and (error := _error(self._conditions(args), found, line)) is not None:
            raise error

    def _first_failure(self, *args: Any) -> jax.Array:
        """The number, from 1 on, of the first requirement that does not hold, or 0; and the value."""
        result = jnp.zeros(2, np.float64)
        for number, condition in reversed(list(enumerate(self.requirements(*args), 1))):
            if condition.holds.size:
                failed = ~condition.holds.reshape(-1)
                value = condition.values.reshape(-1)[jnp.argmax(failed)].astype(np.float64)
                found = jnp.stack([jnp.full((), number, np.float64), value])
                result = jnp.where(failed.any(), found, result)
        return result

    def _conditions(self, args: tuple[Any, ...]) -> list[Condition]:
        """The requirements, without values."""
        tensors, tree = split_jax(args, is_tensor)
        shapes = [jax.ShapeDtypeStruct(t.shape, to_numpy(t.dtype)) for t in tensors]
        conditions: list[Condition] = []

        def run(*arrays: Any) -> None:
            conditions.extend(self.requirements(*tree.filled(arrays)))

        with jax.enable_x64(True):
            jax.eval_shape(run, *shapes)
        return conditions


def _error(conditions: list[Condition], found: Any, line: str) -> Exception | None:
    number, value = int(found[0]), float(found[1])
    if not number:
        return None
    condition = conditions[number - 1]
    shown = int(value) if condition.values.dtype.kind in "iu" else value
    return condition.error(condition.text.replace("{value}", str(shown)) + line)


def _note(error: Exception | None) -> None:
    if error is not None:
        _noted.append(error)


def raise_noted() -> None:
    """Raise what a captured program complained of. For those who wait for values."""
    if _captured:
        jax.effects_barrier()
        if _noted:
            error = _noted[0]
            _noted.clear()
            raise error
