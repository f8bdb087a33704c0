"""`jit`: compiles torch code with side effects, such as a training step, as one program.

Like `pure`, but everything that the code writes is written back: parameters, gradients, optimizer state, running
statistics, the random key. The old arrays are donated, so that a step needs no second copy of them. Python runs once
per signature.

A step that creates persistent tensors in its first call is retraced at its second, when they exist. The program is the
same if the first trace took them as inputs, and then the compiled one is kept (`same_program.py`). The state of torch's
optimizers exists before they step (`optimizers.py`), so that an ordinary training step is traced once.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

import torch

from ..base.torch_private import pytree
from ..programs import tracing
from . import saving
from .cached import Cached, CaptureOptions, check_callable, name_of
from .captured_module import CapturedModule, captured_by
from .hollow import captured_elsewhere
from .same_program import same_program
from .signature import Arguments
from .step import Step
from .step_trace import trace_step

if TYPE_CHECKING:
    from .layouts import MeshLike, Shardings
    from .lowering import Lowered

_steps = threading.RLock()


def without_history(tensor: torch.Tensor) -> torch.Tensor:
    """Return a result of a step without gradient history."""
    return tensor if tensor.is_leaf else tensor.detach()


class Jit(Cached[Step]):
    """A torch function with side effects, compiled for each signature. Created by `jit`."""

    kind = "jit"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if tracing.depth and tracing.active():
            return self._function(*args, **kwargs)
        saving.check_none(self._name)
        # Steps of several threads on the same parameters run one after another: each donates what it reads.
        with _steps:
            return super().__call__(*args, **kwargs)

    def lower(
        self,
        *args: object,
        target: str | None = None,
        mesh: MeshLike | None = None,
        shardings: Shardings | None = None,
        **kwargs: object,
    ) -> Lowered:
        """Lower the program of a step without running it: nothing that the step would write changes.

        A step that creates state, such as an optimizer's, creates it with its initial values.

        Args:
            args, kwargs: as in a call.
            target, mesh, shardings: as in `pure(function).lower`, whose documentation describes the result. Tensors
                that the step writes keep their sharding; state of an optimizer has the sharding of its parameter.

        Example:
            >>> import torch, jaxtorch
            >>> total = torch.zeros(2, device="jax")
            >>> step = jaxtorch.jit(lambda x: total.add_(x))
            >>> step.lower(torch.ones(2, device="jax")).as_text().count("stablehlo.add")
            1
            >>> total
            tensor([0., 0.], device='jax:0')
        """
        from .lowered_call import LoweredCall, with_meta_tensors
        from .lowering import forward_of

        args, kwargs = with_meta_tensors(args, kwargs)
        with _steps:
            elsewhere = captured_elsewhere(
                self.fresh,
                self._function,
                (args, kwargs),
                target,
                mesh,
                shardings,
            )
            step, layout = elsewhere or (self._found_without_run(args, kwargs), None)
            call = LoweredCall(self, (args, kwargs), step.captured)
            return forward_of(step.compiled, target, layout, step.captured.roles, call)

    def _run_plain(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        result = super()._run_plain(args, kwargs)
        return pytree.tree_map_only(torch.Tensor, without_history, result)

    def _trace(self, arguments: Arguments, donated: set[int], previous: Step | None) -> Step:
        first = previous if previous is not None and previous.provisional else None
        step = trace_step(self._function, arguments, self._name, donated, first)
        if (
            previous is not None
            and previous.compiled.forward is not None
            and previous.compiled.donated == step.compiled.donated
            and previous.guards.arrays_hold()  # two jaxprs share an array, so they do not differ by its elements
            and same_program(previous.captured, step.captured)
        ):
            step.compiled.forward = previous.compiled.forward
            step.compiled.records = previous.compiled.records
        return step


@overload
def jit(  # type: ignore[overload-overlap]  # a module is callable, too
    function: torch.nn.Module, **options: Unpack[CaptureOptions]
) -> CapturedModule: ...


@overload
def jit(function: Callable[..., object], **options: Unpack[CaptureOptions]) -> Jit: ...


@overload
def jit(
    function: None = None, **options: Unpack[CaptureOptions]
) -> Callable[[Callable[..., object]], Jit]: ...


def jit(
    function: Callable[..., object] | None = None,
    *,
    name: str | None = None,
    max_entries: int | None = None,
    static_argnames: str | Sequence[str] = (),
    donate: str | Sequence[str] = (),
) -> Jit | CapturedModule | Callable[[Callable[..., object]], Jit]:
    """Compile torch code with side effects, such as a whole training step, into one program per signature.

    `zero_grad`, forward, `backward`, clipping and `optimizer.step()` become one XLA program; parameters, gradients and
    optimizer state are donated to it and written back. The Python code runs on the first call of each signature, and
    again on the second if it creates persistent tensors other than the state of torch's optimizers; later calls only
    run the program. Learning rates are read from the optimizer at each call, so schedulers work if they are stepped
    outside.

    Args:
        function: the step. If omitted, `jit` returns a decorator.
        name: the name of the program in profiles.
        max_entries: as in `pure`.
        static_argnames: as in `pure`.
        donate: arguments whose tensors are donated as well: their memory may be reused, and they must not be used
            after the call.

    Returns:
        A callable that returns what the function returns; tensors in it carry no gradient history. It has `lower`,
        `cache_info` and `clear_cache`, and for a module everything that the module has.

    Raises:
        CaptureError: if the code does something that a captured program cannot do.
        TypeError: if `function` is not callable.
        ValueError: if the function has no argument of a given name.

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
        return functools.partial(  # type: ignore[return-value]  # of the overload for a function
            jit,
            name=name,
            max_entries=max_entries,
            static_argnames=static_argnames,
            donate=donate,
        )
    check_callable(function, "jit")
    return captured_by(
        Jit, function, name or name_of(function), max_entries, static_argnames, donate
    )
