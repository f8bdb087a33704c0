"""`pure`: compiles torch code as one program that is differentiated by `jax.vjp`.

A call is looked up by its signature (`signature.py`). The first call of each signature is traced (`captured.py`) and
compiled (`programs/compiled.py`). Every other call runs the compiled program: it takes the buffers of the arguments and
of everything that is read by name, it returns tensors, and torch's autograd graph gets one node. The code may only
write module buffers (running statistics) and the random key: both are outputs of the program and are written back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack, overload

import torch

from .cached import Cached, CaptureOptions, check_callable, name_of
from .captured_module import CapturedModule, captured_by
from .entry import Entry, trace_entry
from .hollow import captured_elsewhere
from .signature import Arguments

if TYPE_CHECKING:
    from .layouts import MeshLike, Shardings
    from .lowering import Lowered


class Pure(Cached[Entry]):
    """A torch function or module, compiled for each call signature. Created by `pure`."""

    def _trace(self, arguments: Arguments, donated: set[int], previous: Entry | None) -> Entry:
        return trace_entry(self._function, arguments, self._name, donated)

    def lower(
        self,
        *args: object,
        target: str | None = None,
        gradients: bool = False,
        mesh: MeshLike | None = None,
        shardings: Shardings | None = None,
        **kwargs: object,
    ) -> Lowered:
        """Lower the program of a call without running it; it can be printed, or compiled for any device.

        Tensors on the meta device (`with torch.device("meta"): model = ...`) take no memory, at any size. An argument
        may also be a `jax.ShapeDtypeStruct`.

        Args:
            args, kwargs: as in a call.
            target: a TPU topology such as "v5e:1x1" or "v5e:4x4", which need not be present; by default this
                machine's device.
            gradients: lower forward and backward as one program of the inputs and the cotangents of the outputs.
            mesh: the axes of the target's chips and their sizes, as {"data": 4, "model": 4}, or a mesh of JAX.
            shardings: of the inputs on the mesh: a `PartitionSpec` by pattern of their names, where the first match
                applies, or a function of name and shape. State of an optimizer has its parameter's sharding, unless a
                pattern names it. Other inputs are replicated.

        Returns:
            An object with the names of `jax.stages.Lowered`: `.as_text()`, `.cost_analysis()` and `.compile()`, which
            has `.as_text()`, `.cost_analysis()` and `.memory_analysis()`. `.jaxpr` is the program as a jaxpr. What
            `.compile()` returns can be called with such arguments, if there is no target and no `gradients`.

        Raises:
            ValueError: target, mesh and shardings do not fit, or a pattern matches no input.

        Example:
            >>> import torch, jaxtorch
            >>> f = jaxtorch.pure(lambda a, b: torch.einsum("ij,jk->ik", a, b))
            >>> x = torch.ones(2, 2, device="jax")
            >>> f.lower(x, x).as_text().count("dot_general")
            1
        """
        from .lowered_call import LoweredCall, with_meta_tensors
        from .lowering import forward_of, with_gradients_of

        args, kwargs = with_meta_tensors(args, kwargs)
        elsewhere = captured_elsewhere(
            self.fresh,
            self._function,
            (args, kwargs),
            target,
            mesh,
            shardings,
        )
        entry, layout = elsewhere or (self._found_without_run(args, kwargs), None)
        compiled, roles = entry.bridge.compiled, entry.captured.roles
        if gradients:
            return with_gradients_of(compiled, target, layout, roles)
        call = LoweredCall(self, (args, kwargs), entry.captured)
        return forward_of(compiled, target, layout, roles, call)


@overload
def pure(  # type: ignore[overload-overlap]  # a module is callable, too
    function: torch.nn.Module, **options: Unpack[CaptureOptions]
) -> CapturedModule: ...


@overload
def pure(function: Callable[..., object], **options: Unpack[CaptureOptions]) -> Pure: ...


@overload
def pure(
    function: None = None, **options: Unpack[CaptureOptions]
) -> Callable[[Callable[..., object]], Pure]: ...


def pure(
    function: Callable[..., object] | None = None,
    *,
    name: str | None = None,
    max_entries: int | None = None,
    static_argnames: str | Sequence[str] = (),
    donate: str | Sequence[str] = (),
) -> Pure | CapturedModule | Callable[[Callable[..., object]], Pure]:
    """Compile a torch function or module as one program for each call signature.

    The function is traced once per signature; later calls run the compiled program and none of its Python. Gradients
    are computed by `jax.vjp` and flow to arguments, parameters and captured leaf tensors as in eager torch. Inputs are
    found when the code reads them: a parameter deep in a module or a tensor of a closure needs no declaration. Running
    statistics and the random key are threaded through; any other write to a tensor that existed before is an error.

    Args:
        function: a function, method or `nn.Module`. If omitted, `pure` returns a decorator.
        name: the name of the program in profiles; by default the function's own name.
        max_entries: how many programs to keep; the least recently traced is evicted first. By default all.
        static_argnames: arguments whose numbers are compiled into the program: a new number is a new trace. Other
            numbers become operands at their second value.
        donate: arguments whose tensors are donated: a call without gradients may reuse their memory, and they must not
            be used after it.

    Returns:
        A callable with `lower`, `cache_info` and `clear_cache`. For a module it is also the module in every other
        respect, as for `torch.compile`: `isinstance`, `parameters()`, `state_dict()`, `eval()`, attributes.

    Raises:
        CaptureError: if the code does something that a captured program cannot do; the message says what to write
            instead.
        TypeError: if `function` is not callable.
        ValueError: if the function has no argument of a given name.

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
        return functools.partial(  # type: ignore[return-value]  # of the overload for a function
            pure,
            name=name,
            max_entries=max_entries,
            static_argnames=static_argnames,
            donate=donate,
        )
    if isinstance(function, Pure):
        return function
    check_callable(function, "pure")
    return captured_by(
        Pure, function, name or name_of(function), max_entries, static_argnames, donate
    )
