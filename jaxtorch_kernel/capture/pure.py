"""`pure`: torch code compiled whole through `jax.vjp`.

A call is looked up under its signature (`signature.py`). The first of each is traced (`captured.py`) and compiled
(`programs/compiled.py`); every other runs the compiled program: arguments' buffers and the captured cells in, tensors
out, one node in torch's autograd graph. What the code may write is a module's own buffers (running statistics) and the
random key: both are outputs of the program and are written back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import saving
from .cached import Cached, checked, name_of
from .entry import Entry, trace_entry
from .signature import Arguments

if TYPE_CHECKING:
    from .lowering import Lowered


class Pure(Cached[Entry]):
    """A torch function or module, compiled for each signature it is called with. Made by `pure`."""

    def _trace(self, arguments: Arguments, donated: set[int], previous: Entry | None) -> Entry:
        with saving.open_trace():
            return trace_entry(self._function, arguments, self._name, donated)

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

        entry, _, _, traced = self.find(args, kwargs)
        if traced:
            entry.take_back()
        lower = with_gradients_of if gradients else forward_of
        return lower(entry.bridge.compiled, target)


def pure(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    max_entries: int | None = None,
    static_argnames: str | Sequence[str] = (),
    donate: str | Sequence[str] = (),
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
        static_argnames: arguments whose numbers are part of the program: another number, another trace. Others are
            operands from their second value on.
        donate: arguments whose tensors are donated: a call without gradients may reuse their memory, and they must not
            be used after it.

    Raises:
        CaptureError: the code does what a captured program cannot; the message says what to write instead.
        TypeError: it is no function.
        ValueError: the function has no argument of such a name.

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
        return functools.partial(
            pure,
            name=name,
            max_entries=max_entries,
            static_argnames=static_argnames,
            donate=donate,
        )
    if isinstance(function, Pure):
        return function
    checked(function, "pure")
    return Pure(function, name or name_of(function), max_entries, static_argnames, donate)
