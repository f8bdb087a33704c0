"""`pure`: torch code compiled whole through `jax.vjp`.

A call is looked up under its signature (`signature.py`). The first of each is traced (`captured.py`) and compiled
(`interop/compiled.py`); every other runs the compiled program: arguments' buffers and the captured cells in, tensors
out, one node in torch's autograd graph. What the code may write is a module's own buffers (running statistics) and the
random key: both are outputs of the program and are written back.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _torch_private as private
from ..dispatch import tracing
from .entry import Entry, trace_entry
from .errors import CaptureError, explained
from .numbers import Numbers
from .signature import Arguments, key_of, quick_key

if TYPE_CHECKING:
    from .lowering import Lowered


class CacheInfo(NamedTuple):
    """As `functools.lru_cache`'s: calls that found a program, calls that were traced, programs kept and allowed."""

    hits: int
    misses: int
    maxsize: int | None
    currsize: int


class Pure:
    """A torch function or module, compiled for each signature it is called with. Made by `pure`."""

    def __init__(self, function: Callable[..., Any], name: str, max_entries: int | None):
        self._function = function
        self._name = name
        self._max_entries = max_entries
        self._entries: OrderedDict[Any, Entry] = OrderedDict()
        self._quick: dict[Any, Entry] = {}
        self._numbers = Numbers()
        self._hits = self._misses = 0
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if private.interposed(()) or tracing.active():
            # Part of a larger program, or under a transform of torch's, which sees through it.
            return self._function(*args, **kwargs)
        if not kwargs:
            # Tensors of the device alone: the commonest call, without the pytree.
            entry = self._quick.get(quick_key(args))
            if entry is not None and (cells := entry.live_cells()) is not None:
                self._hits += 1
                return entry.run(args, cells)
        arguments = Arguments(args, kwargs, self._numbers)
        key = key_of(arguments)
        entry = self._entries.get(key)
        cells = entry.live_cells() if entry is not None else None
        if entry is None or cells is None:
            try:
                entry = self._trace(arguments, key)
            except CaptureError:
                if not self._numbers.fix(arguments.structure):
                    raise
                return self(*args, **kwargs)  # with every number static
            cells = entry.live_cells()
            if cells is None:
                raise CaptureError(
                    "the captured code changed what it depends on (a constant, a module) while it ran",
                    "Change it outside.",
                )
        else:
            self._hits += 1
        if not kwargs and arguments.plain:
            quick = quick_key(args)
            if quick is not None:
                self._quick[quick] = entry
        return entry.run(arguments.leaves, cells, arguments.borrowed)

    def _trace(self, arguments: Arguments, key: Any) -> Entry:
        self._misses += 1
        self._quick.clear()
        with explained(self._function):
            entry = trace_entry(self._function, arguments, self._name)
        self._entries[key] = entry
        self._entries.move_to_end(key)
        if self._max_entries is not None and len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)
        return entry

    def lower(
        self, *args: Any, target: str | None = None, gradients: bool = False, **kwargs: Any
    ) -> Lowered:
        """The program of a call, as text and compiled for any device; nothing runs.

        Args:
            args, kwargs: as in a call.
            target: a TPU that need not be there, such as "v5e:1x1"; this machine's device by default.
            gradients: forward and backward as one program, from the inputs and the cotangents of the outputs.

        Returns:
            An object with `.jaxpr`, `.stablehlo` and `.compile()`, which has `.hlo`, `.cost_analysis()` and
            `.memory_analysis()`.

        Example:
            >>> import torch, jaxtorch
            >>> f = jaxtorch.pure(lambda a, b: torch.einsum("ij,jk->ik", a, b))
            >>> x = torch.ones(2, 2, device="jax")
            >>> f.lower(x, x).stablehlo.count("dot_general")
            1
        """
        from .lowering import forward_of, with_gradients_of

        arguments = Arguments(args, kwargs, self._numbers)
        key = key_of(arguments)
        entry = self._entries.get(key)
        if entry is None or entry.live_cells() is None:
            entry = self._trace(arguments, key)
        lower = with_gradients_of if gradients else forward_of
        return lower(entry.bridge.compiled, target)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        return functools.partial(self, instance)

    def cache_info(self) -> CacheInfo:
        """Hits, misses, and how many programs are kept."""
        return CacheInfo(self._hits, self._misses, self._max_entries, len(self._entries))

    def clear_cache(self) -> None:
        """Forget every program."""
        self._entries.clear()
        self._quick.clear()
        self._hits = self._misses = 0


def pure(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    max_entries: int | None = None,
) -> Any:
    """Compile a torch function or module whole, for each signature it is called with.

    The function runs once a signature, over tracers; later calls run the compiled program and no Python of it.
    Gradients are `jax.vjp`'s, and flow to arguments, parameters and captured leaf tensors as in eager torch. Inputs are
    found by reading: a parameter deep in a module or a tensor of a closure needs no declaration. Running statistics
    and the random key are threaded through; any other write to a tensor that was there before is an error.

    Args:
        function: a function, method or `nn.Module`. Left out, `pure` is a decorator.
        name: what the program is called in profiles; the function's own name by default.
        max_entries: how many programs are kept, the least lately traced going first; all by default.

    Raises:
        CaptureError: the code does what a captured program cannot; the message says what to write instead.

    Example:
        >>> import torch, jaxtorch
        >>> @jaxtorch.pure
        ... def f(x):
        ...     return (x.sin() * 2).sum()
        >>> x = torch.zeros(3, device="jax", requires_grad=True)
        >>> f(x).backward()
        >>> x.grad
        tensor([2., 2., 2.], device='jax:0')
        >>> f.cache_info()
        CacheInfo(hits=0, misses=1, maxsize=None, currsize=1)
    """
    if function is None:
        return functools.partial(pure, name=name, max_entries=max_entries)
    if isinstance(function, Pure):
        return function
    if not callable(function):
        raise TypeError(f"pure takes a function or a module, not {type(function).__name__}")
    return Pure(function, name or name_of(function), max_entries)


def name_of(function: Any) -> str:
    """A function's name, or its class's."""
    return str(getattr(function, "__name__", type(function).__name__))
