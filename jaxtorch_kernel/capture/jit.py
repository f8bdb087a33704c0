"""`jit`: torch code with effects compiled whole, such as a training step.

As `pure`, but what the code writes is written back: parameters, gradients, optimizer state, running statistics, the
random key. The old arrays are donated, so that a step needs no second copy of them. Python runs once a signature.

A step that makes lasting tensors (an optimizer's state in its first call) is traced once more at its second call, when
those exist; if it is the same program, the compiled one is kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..dispatch import tracing
from .errors import CaptureError, explained
from .numbers import Numbers
from .pure import CacheInfo, name_of
from .signature import Arguments, key_of, quick_key
from .step import Step, same_program, trace_step


class Jit:
    """A torch function with effects, compiled for each signature. Made by `jit`."""

    def __init__(self, function: Callable[..., Any], name: str):
        self._function = function
        self._name = name
        self._steps: dict[Any, Step] = {}
        self._quick: dict[Any, Step] = {}
        self._numbers = Numbers()
        self._hits = self._misses = 0
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if tracing.active():
            return self._function(*args, **kwargs)
        if not kwargs:
            # Tensors of the device alone: the commonest call, without the pytree.
            step = self._quick.get(quick_key(args))
            if step is not None and (cells := step.live_cells()) is not None:
                self._hits += 1
                return step.run(args, cells)
        arguments = Arguments(args, kwargs, self._numbers)
        key = key_of(arguments)
        step = self._steps.get(key)
        cells = None if step is None or step.provisional else step.live_cells()
        if step is None or cells is None:
            try:
                step = self._trace(arguments, key, step)
            except CaptureError:
                if not self._numbers.fix(arguments.structure):
                    raise
                return self(*args, **kwargs)  # with every number static
            cells = step.live_cells()
            if cells is None:
                raise CaptureError(
                    "the step changed what it depends on (a constant, a module) while it ran",
                    "Change it outside.",
                )
        else:
            self._hits += 1
        if not kwargs and arguments.plain and not step.provisional:
            quick = quick_key(args)
            if quick is not None:
                self._quick[quick] = step
        return step.run(arguments.leaves, cells)

    def _trace(self, arguments: Arguments, key: Any, previous: Step | None) -> Step:
        self._misses += 1
        self._quick.clear()
        with explained(self._function):
            step = trace_step(self._function, arguments, self._name)
        step.provisional = previous is None and step.provisional
        step.prepare()
        if previous is not None and same_program(previous, step):
            step.compiled.forward = previous.compiled.forward
        self._steps[key] = step
        return step

    def cache_info(self) -> CacheInfo:
        """Hits, misses, and how many programs are kept."""
        return CacheInfo(self._hits, self._misses, None, len(self._steps))

    def clear_cache(self) -> None:
        """Forget every program."""
        self._steps.clear()
        self._quick.clear()
        self._hits = self._misses = 0


def jit(function: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Compile torch code with effects, such as a whole training step, into one program a signature.

    `zero_grad`, forward, `backward`, clipping and `optimizer.step()` become one XLA program; parameters, gradients and
    optimizer state are donated to it and written back. The Python code runs when a signature is met first (twice where
    it makes lasting state); later calls run the program alone. Learning rates are read from the optimizer at each
    call, so that schedulers work, called outside.

    Args:
        function: the step. Left out, `jit` is a decorator.
        name: what the program is called in profiles.

    Returns:
        A callable that returns what the function returns; tensors in it carry no gradient history.

    Raises:
        CaptureError: the code does what a captured program cannot.

    Example:
        >>> import torch, jaxtorch
        >>> w = torch.ones(2, device="jax", requires_grad=True)
        >>> optimizer = torch.optim.SGD([w], lr=0.5)
        >>> @jaxtorch.jit
        ... def step(x):
        ...     optimizer.zero_grad()
        ...     loss = (w * x).sum()
        ...     loss.backward()
        ...     optimizer.step()
        ...     return loss
        >>> step(torch.ones(2, device="jax"))
        tensor(2., device='jax:0')
        >>> w
        tensor([0.5000, 0.5000], device='jax:0', requires_grad=True)
    """
    if function is None:
        return functools.partial(jit, name=name)
    return Jit(function, name or name_of(function))
