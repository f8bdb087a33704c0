"""Export of captured programs, and import of `torch.export` programs.

`export` turns torch code into a `jax.export` artifact: StableHLO with the weights embedded or as inputs. Any process
with jax can load it, without torch and jaxtorch. `from_exported` runs a `torch.export` program on the jax device.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import export as jax_export

from ..programs.trees import is_tensor, split_jax
from ..storage.dtypes import to_numpy
from ..storage.transfer import to_device
from .cached import name_of
from .dependencies.open_recorders import read_whole
from .errors import CaptureError
from .jax_view import jax_view
from .pure import Pure

Tensor = torch.Tensor
State = dict[str, Tensor]  # the parameters and buffers of a module, by name


class ExportedModule(torch.nn.Module):
    """A `torch.export` program on the jax device. Created by `from_exported`.

    Attributes:
        module: torch's module of the program, with its parameters and buffers.
    """

    def __init__(self, program: torch.export.ExportedProgram):
        super().__init__()
        from torch.export.passes import move_to_device_pass

        self.module = move_to_device_pass(program, "jax:0").module()
        self._pure = Pure(self._program, "exported", None)

    def _program(self, *args: object, **kwargs: object) -> Any:
        read_whole(self.module)  # its code reads parameters by name, without calling the submodules
        return self.module(*args, **kwargs)

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Run the program, compiled once for each call signature."""
        return self._pure(*args, **kwargs)

    def train(self, mode: bool = True) -> ExportedModule:
        """Refuse to switch the mode, which is fixed when the program is exported.

        Raises:
            CaptureError: if `mode` differs from the current mode.
        """
        if mode is not self.training:
            raise CaptureError(
                "an exported program cannot switch between training and evaluation",
                "Call model.train() or model.eval() before torch.export.export.",
            )
        return self


def from_exported(program: torch.export.ExportedProgram) -> ExportedModule:
    """Load a program of `torch.export.export` as a module on the jax device.

    Each signature is compiled as one program, as by `pure`; gradients flow to the module's `parameters()` and to the
    arguments. CPU tensors are also accepted, and give results on the CPU.

    Args:
        program: a program exported for any device. Its weights are copied to the jax device.

    Returns:
        A `torch.nn.Module` with its parameters on the jax device. Its mode is fixed: `train()` and `eval()` cannot
        change it.

    Raises:
        AssertionError: if a call does not match the sizes that the program was exported for (torch's own check).

    Example:
        >>> import torch, jaxtorch
        >>> program = torch.export.export(torch.nn.ReLU(), (torch.zeros(2),))
        >>> jaxtorch.from_exported(program)(torch.tensor([-1.0, 1.0], device="jax"))
        tensor([0., 1.], device='jax:0')
    """
    return ExportedModule(program)


def export(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    *,
    weights: bool = True,
    platforms: Sequence[str] | None = None,
) -> jax_export.Exported:
    """Export torch code as a `jax.export` artifact that loads without torch.

    Load it with `jax.export.deserialize(data).call(*arrays)`. As in JAX, 64-bit types become 32-bit ones unless
    `jax_enable_x64` is on. An artifact accepts only the sizes that it was exported for, and has no side effects: call
    `.eval()` on a module first.

    Args:
        function: a torch function or module, on the CPU or the jax device.
        args: example arguments. Tensors in tuples, lists and dicts become arrays of their shape and dtype; anything
            else is part of the program, and `.call` takes None in its place.
        kwargs: example keyword arguments.
        weights: whether to embed a module's parameters and buffers in the artifact. If not, `.call` takes them as its
            first argument, a dict by name.
        platforms: the platforms to export for, as in `jax.export.export` ("cpu", "cuda", "tpu"); by default this
            process's.

    Returns:
        A `jax.export.Exported`: `.serialize()` gives bytes (`.serialize(vjp_order=1)` with gradients), `.mlir_module()`
        text.

    Raises:
        CaptureError: if the code writes to a tensor, draws random numbers, or reads the value of a traced tensor.

    Example:
        >>> import jax, torch, jaxtorch
        >>> data = jaxtorch.export(torch.nn.ReLU(), (torch.zeros(2),)).serialize()
        >>> jax.export.deserialize(data).call(jax.numpy.array([-1.0, 1.0]))
        Array([0., 1.], dtype=float32)
    """
    tensors, tree = split_jax((tuple(args), dict(kwargs or {})), is_tensor)
    call, state = _with_state(function)

    def on_tensors(state: State, *tensors: Tensor) -> object:
        return _plain(call(state, *tree.filled(tensors)))

    def program(*operands: object, **named: object) -> object:
        if weights:
            return jax_view(functools.partial(on_tensors, state))(
                *jax.tree.leaves((operands, named))
            )
        return jax_view(on_tensors)(operands[0], *jax.tree.leaves((operands[1:], named)))

    program.__name__ = program.__qualname__ = name_of(function)
    # The artifact takes None for a leaf that is not a tensor.
    avals: list[jax.ShapeDtypeStruct | None] = [None] * len(tree.statics)
    for index, tensor in zip(tree.indices, tensors, strict=True):
        avals[index] = _aval(tensor)
    shapes, named_shapes = jax.tree.unflatten(tree.structure, avals)
    if not weights:
        shapes = ({name: _aval(t) for name, t in state.items()}, *shapes)
    exporter = jax_export.export(jax.jit(program), platforms=platforms)
    return exporter(*shapes, **named_shapes)


def _with_state(
    function: Callable[..., object],
) -> tuple[Callable[[State, Any, Any], object], State]:
    """A function of (state, args, kwargs) that calls `function`, and its state on the jax device."""
    if not isinstance(function, torch.nn.Module):
        return lambda _, args, kwargs: function(*args, **kwargs), {}
    state = {
        name: t if t.device.type == "jax" else to_device(t.detach())
        for name, t in [*function.named_parameters(), *function.named_buffers()]
    }
    buffers = [name for name, _ in function.named_buffers()]

    def call(state: State, args: Any, kwargs: Any) -> object:
        # `jax_view` gives every floating-point input a gradient, which operators refuse for running statistics.
        state = state | {name: state[name].detach() for name in buffers}
        return torch.func.functional_call(function, state, args, kwargs)

    return call, state


def _aval(tensor: Tensor) -> jax.ShapeDtypeStruct:
    dtype = jax.dtypes.canonicalize_dtype(np.dtype(to_numpy(tensor.dtype)))
    return jax.ShapeDtypeStruct(tuple(tensor.shape), dtype)


def _plain(result: object) -> object:
    """The result with the containers that a process without torch knows."""
    if isinstance(result, Mapping):
        return {key: _plain(value) for key, value in result.items()}
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {f.name: _plain(getattr(result, f.name)) for f in dataclasses.fields(result)}
    if isinstance(result, list):
        return [_plain(value) for value in result]
    if isinstance(result, tuple):
        return tuple(_plain(value) for value in result)
    return result
