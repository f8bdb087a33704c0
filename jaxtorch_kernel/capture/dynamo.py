"""`torch.compile(model, backend="jax")`.

Dynamo turns Python into guarded FX graphs of torch functions. Each graph runs under `pure` unchanged: no AOTAutograd,
no decompositions, gradients by `jax.vjp`. Tensors on the jax device are passed directly; CPU tensors are borrowed for
each call (`operators/borrow.py`), and results that the graph computes on the CPU are returned there.

Sizes that Dynamo keeps symbolic (`dynamic=True`) are known when a graph is called: XLA compiles one program for each
combination of sizes, and at most `max_entries` of them are kept per graph.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import CodeType, ModuleType
from typing import Any

import jax
import torch
from torch import fx

from ..base import torch_changes
from ..base import torch_private as private
from ..base.options import config
from ..operators.borrow import hand_back, lend
from ..operators.registration import import_all
from ..programs import tracing
from ..programs.site import warn
from ..storage.buffer import buffer_of
from .dependencies.host_number import HostNumber
from .errors import CaptureError
from .graphs import DeviceGraph
from .jit import Jit
from .pure import Pure
from .signature import by_value

Tensor = torch.Tensor

# Not all of `capture`: Dynamo must see that the hooks of `guards` do nothing. Not all of `interop`: it must see that
# `call_jax` is one node of its graph.
_HIDDEN = (
    *("storage", "lowerings", "programs", "dispatch", "operators", "device"),
    *("capture.pure", "capture.jit", "capture.jax_view"),
    *(
        "interop.optax",
        "interop.optax_rule",
        "interop.tensor_update",
        "interop.torch_call",
        "interop.values",
    ),
)

_NO_PART = (
    "a step of jit writes what exists before it, so it is a program of its own: use jaxtorch.pure(f) within "
    "torch.compile, or torch.compile within jit"
)


def _hide() -> None:
    """Let Dynamo leave this project and JAX alone."""
    for package in (*(f"jaxtorch.{part}" for part in _HIDDEN), "jax", "jaxlib"):
        torch_changes.hide_from_dynamo(package)
    torch_changes.refuse_in_dynamo(Jit.__call__, _NO_PART)
    import_all()
    modules = [module for name, module in sys.modules.items() if name.startswith("jaxtorch.")]
    torch_changes.run_without_dynamo(code for module in modules for code in _codes(module))


def _codes(module: ModuleType) -> Iterator[CodeType]:
    """The code of all functions of a module, including functions inside others."""
    pending: list[object] = [vars(module)]
    seen = set()
    while pending:
        value = pending.pop()
        if isinstance(value, CodeType):
            if value.co_filename == module.__file__:  # a module may also refer to code of torch's
                yield value
                pending.extend(value.co_consts)
        elif isinstance(value, dict):  # the attributes of a module or a class
            pending.extend(value.values())
        elif getattr(value, "__module__", None) == module.__name__ and id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, type):
                pending.append(dict(vars(value)))
            # A function, a static method, and a wrapper made by `functools.wraps`.
            for name in ("__code__", "__func__", "__wrapped__"):
                pending.append(getattr(value, name, None))
        elif isinstance(value, property):
            pending.extend((value.fget, value.fset))


_hide()

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite")
MAX_ENTRIES = 64


def backend(
    graph: fx.GraphModule,
    examples: Sequence[object],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> CompiledGraph:
    """The backend of `torch.compile(..., backend="jax")`, which torch finds by its entry point.

    Args:
        graph: from Dynamo.
        examples: fake inputs; unused, because a graph is traced when it is called.
        mode: torch's modes are accepted but have no effect: XLA always fuses and tunes.
        options: `max_entries`, how many programs to keep per graph (64), and any option of `jaxtorch.config`. They have
            no effect where captured code (`pure`, `jit`, `scan`) calls the function: it runs as plain Python there.

    Raises:
        ValueError: if the mode is unknown.
        AttributeError: if an option is unknown.

    Example:
        >>> import torch
        >>> f = torch.compile(lambda x: (x.sin() * 2).sum(), backend="jax")
        >>> f(torch.zeros(3))
        tensor(0.)
    """
    if mode is not None and mode not in MODES:
        modes = ", ".join(map(repr, MODES))
        raise ValueError(
            f"torch.compile(backend='jax'): mode must be one of {modes}, not {mode!r}."
        )
    changes = dict(options or {})
    max_entries = changes.pop("max_entries", MAX_ENTRIES)
    return CompiledGraph(graph, max_entries, changes)


class CompiledGraph:
    """One graph, callable as Dynamo calls it.

    Attributes:
        argument_names: what views call the inputs.
    """

    def __init__(self, graph: fx.GraphModule, max_entries: int | None, changes: dict[str, Any]):
        self.original = graph
        self.graph = DeviceGraph(graph)
        self.argument_names = self.graph.names
        self.pure = Pure(self._on_device, "compiled", max_entries)
        self.pure.source.kind = "compile"
        self.scope = config(**changes) if changes else nullcontext()
        self.copied = set(self.graph.written)  # inputs that must not be borrowed
        self.eager = False  # whether the graph runs eagerly, because `pure` cannot capture it
        self._warned = False

    def __call__(self, *args: object) -> Any:
        graph = self.graph
        inputs: list[Any] = [*args, *(_attribute(self.original, n) for n in graph.attributes)]
        if tracing.active() or private.transformed() or self._needs_eager(inputs):
            return self.original(*args)
        operands = list(inputs)
        for i in graph.floats:
            operands[i] = operands[i].item()
        for i in graph.unused:
            operands[i] = None
        tensors = [i for i, a in enumerate(operands) if isinstance(a, Tensor)]
        guests = [i for i in tensors if not _on_jax(operands[i])]
        # CPU tensors share their memory only if all are on the CPU. With tensors of the device among them nobody waits
        # for the program, and the caller could write to the shared memory before the program has read it.
        share = len(guests) == len(tensors)
        with self.scope, _autocast_as_cpu() if guests else nullcontext():
            self._lend(operands, guests, share)
            try:
                outputs, written = self.pure(*operands)
            except CaptureError as error:
                self._warn(f"cannot be captured as one program ({error.what})", error.advice)
                self.eager = True
                return self.original(*args)
        if share and guests:
            # Otherwise the caller could write to a CPU tensor before the program has read it.
            _wait([*outputs, *written.values()])
        results = self._on_original_devices(list(outputs), share)
        for i, value in written.items():
            self._write(i, inputs[i], value)
        if graph.viewer is not None:
            views = graph.viewer(*inputs)
            results = [views[i] if i in graph.views else r for i, r in enumerate(results)]
        return tuple(results)

    def _on_device(self, *args: object) -> tuple[Any, dict[int, Tensor]]:
        """The code that `pure` traces: runs the graph on copies of the tensors that it may write.

        Returns:
            The outputs of the graph, and the tensors that it wrote by the index of the input.
        """
        operands: list[object] = list(args)
        copies: dict[int, tuple[Tensor, jax.Array]] = {}  # a copy, and its array before the graph
        for i, a in enumerate(args):
            if type(a) is HostNumber:  # the graph uses it as a float
                continue
            if isinstance(a, StaticNumber):
                operands[i] = a.value
            elif isinstance(a, Tensor) and not (a.requires_grad and torch.is_grad_enabled()):
                operands[i] = copy = a.clone()
                of_copy, spec = buffer_of(copy), buffer_of(a).spec
                if (spec.dtype, spec.shape) == (of_copy.spec.dtype, of_copy.spec.shape):
                    of_copy.spec = spec  # so that `zeros_like` has the sharding of the input
                copies[i] = copy, of_copy.array
        with torch.device("jax"):  # for factory calls without a device argument
            outputs = self.graph.module(*operands)
        written = {i: t for i, (t, array) in copies.items() if buffer_of(t).array is not array}
        return outputs, written

    def _needs_eager(self, inputs: list[Any]) -> bool:
        """Whether the graph writes in a way that needs torch's own autograd, or inputs that really share memory."""
        if self.eager:
            return True
        written = [inputs[i] for i in self.graph.written]
        if not written:
            return False
        if torch.is_grad_enabled() and any(t.requires_grad for t in written):
            why = "writes in place to an input that requires a gradient"
        elif len({_memory(a) for a in inputs if isinstance(a, Tensor)}) < sum(
            isinstance(a, Tensor) for a in inputs
        ):
            why = "writes in place to one of two inputs that share memory"
        else:
            return False
        self._warn(why, "Return the new value instead.")
        return True

    def _warn(self, why: str, advice: str) -> None:
        if not self._warned:
            self._warned = True
            warn(
                f"torch.compile(backend='jax'): a graph {why}, so it runs eagerly, operator by operator. {advice}",
            )

    def _lend(self, operands: list[Any], guests: list[int], share: bool) -> None:
        """Convert the inputs to what `pure` takes: tensors of the device, and numbers that are static."""
        for shared in (True, False):
            some = [i for i in guests if (share and i not in self.copied) is shared]
            for i, lent in zip(some, lend([operands[i] for i in some], shared), strict=True):
                operands[i] = lent
        for i in self.graph.statics:
            if isinstance(operands[i], int | float):
                operands[i] = StaticNumber(operands[i])

    def _on_original_devices(self, results: list[Any], share: bool) -> list[Any]:
        """The outputs on the devices that the original code puts them on."""
        by_device: dict[torch.device, list[int]] = {}
        for i, (result, device) in enumerate(zip(results, self.graph.devices, strict=True)):
            if isinstance(result, Tensor) and device is not None and device.type != "jax":
                by_device.setdefault(device, []).append(i)
        for device, indices in by_device.items():
            returned = hand_back([results[i] for i in indices], device, share)
            for i, tensor in zip(indices, returned, strict=True):
                results[i] = tensor
        return results

    def _write(self, i: int, target: Tensor, value: Tensor) -> None:
        """Write to an input the value that the graph wrote to its copy."""
        self.copied.add(i)
        with torch.no_grad():
            if (
                i not in self.graph.written
            ):  # running statistics: torch does not increment their version
                target = target.data
            target.copy_(value)


class StaticNumber:
    """A number whose value is part of the program."""

    __slots__ = ("value",)

    def __init__(self, value: int | float):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticNumber) and by_value(other.value) == by_value(self.value)

    def __hash__(self) -> int:
        return hash(by_value(self.value))


def _on_jax(tensor: Tensor) -> bool:
    return tensor.device.type == "jax"


def _wait(results: Iterable[object]) -> None:
    for result in results:
        if isinstance(result, Tensor):
            buffer_of(result).array.block_until_ready()


def _memory(tensor: Tensor) -> int:
    return id(buffer_of(tensor)) if _on_jax(tensor) else tensor.untyped_storage()._cdata


def _attribute(graph: fx.GraphModule, name: str) -> Tensor:
    tensor: Tensor = operator.attrgetter(name)(graph)
    return tensor


def _autocast_as_cpu() -> AbstractContextManager[object]:
    """Autocast on the device with the settings of the CPU."""
    if not torch.is_autocast_enabled("cpu"):
        return nullcontext()
    return torch.autocast("jax", dtype=torch.get_autocast_dtype("cpu"))
