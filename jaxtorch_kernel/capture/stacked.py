"""`stack_layers`: identical layers as one module that holds each parameter of all of them as one tensor.

`scan_layers` reads the tensors of separate layers and stacks them in the program. That is right for a model whose
layers other code uses one by one. In a large model it is expensive: the program has an input, a gradient and an update
for each tensor of each layer, and a copy of all weights. A `StackedLayers` has one parameter for all layers instead,
with the layers as its first dimension, so neither the program nor the optimizer grows with depth.

The code of the first layer runs in a `scan`, with one row of each stacked tensor in the place of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import nn
from torch.func import functional_call

from .alike import check_alike, layers_of, state_of
from .scan import Remat, scan

Tensor = torch.Tensor
X = TypeVar("X")  # a tensor, or a pytree of tensors


class StackedLayers(nn.Module):
    """Identical layers that run as one loop. Created by `stack_layers`.

    A loop over it has one iteration, whose layer runs all of them: `for layer in self.layers: x = layer(x, ...)` works
    as it is.

    Attributes:
        layer: the first layer. Each of its parameters and buffers has the layers as an additional first dimension.
        count: the number of layers.
    """

    layer: nn.Module

    def __init__(self, layers: Iterable[nn.Module], remat: Remat, ignore: Sequence[str]):
        super().__init__()
        modules = layers_of(layers, "stack_layers")
        if not modules:
            raise ValueError("stack_layers needs at least one layer")
        states = [state_of(layer) for layer in modules]
        for i, layer in enumerate(modules):
            check_alike(modules[0], layer, states[0], states[i], i, tuple(ignore))
        self.count, self._remat, self.layer = len(modules), remat, modules[0]
        names = states[0].names
        stacked = [_stacked([s.tensors[i] for s in states]) for i in range(states[0].size)]
        for module_name, module in self.layer.named_modules(remove_duplicate=False):
            for table in (module._parameters, module._buffers):
                for name in [n for n, tensor in table.items() if tensor is not None]:
                    full = f"{module_name}.{name}" if module_name else name
                    table[name] = stacked[names[full]]
        self.register_state_dict_post_hook(_separate)
        self.register_load_state_dict_pre_hook(_join)

    def forward(self, x: X, *shared: object, **keywords: object) -> X:
        """Call the layers one after the other.

        Args:
            x: the input of the first layer: a tensor, or a pytree of them. Each layer returns the same structure.
            shared, keywords: further arguments, the same for each layer.
        """
        layer = self.layer

        def run(x: object, row: dict[str, Tensor]) -> tuple[object, None]:
            return functional_call(layer, row, (x, *shared), keywords), None

        rows = dict(_tensors(layer))
        last: X
        last, _ = scan(run, x, rows, self.count, remat=self._remat)
        return last

    def extra_repr(self) -> str:
        """The number of layers, for `repr`."""
        return f"{self.count} layers"

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[StackedLayers]:
        return iter((self,))

    def __getitem__(self, index: object) -> StackedLayers:
        if isinstance(index, slice) and range(self.count)[index] == range(self.count):
            return self
        raise IndexError(
            f"stacked layers run together, so layers[{index}] does not exist: read a row of a stacked parameter "
            "instead, or call layers that must be separate before they are stacked"
        )


def stack_layers(
    layers: Iterable[nn.Module], *, remat: Remat = False, ignore: Sequence[str] = ()
) -> StackedLayers:
    """Make identical layers one module, with one parameter for each name in place of one for each layer.

    The module takes the place of the list of layers, and runs them as one loop:

        model.model.layers = jaxtorch.stack_layers(model.model.layers, remat=True)

    Everything that treats each parameter element by element gives the same results: gradients, Adam, clipping by the
    global norm. Optimizers that treat a parameter as a matrix (Muon, Adafactor, LAMB) give other results. `state_dict`
    and `load_state_dict` have the names and shapes of the separate layers, so checkpoints stay as they are.

    Load the weights before the call and create the optimizer after it, because the parameters are new tensors.

    Args:
        layers: modules of one class, with tensors of the same names, shapes and dtypes, on any device. The first
            becomes part of the result; the others are not needed any more.
        remat: save only each layer's input for the backward pass and recompute the rest (`jax.checkpoint`). A policy
            of `jax.checkpoint_policies`, or its name, selects residuals to save in addition.
        ignore: plain attributes in which layers may differ, because their code does not use them (`"layer_idx"`).

    Returns:
        The module. `len` gives the number of layers, and a loop over it has one iteration.

    Raises:
        CaptureError: if the layers differ; the message says where.
        TypeError: if a layer is not a module.
        ValueError: if there is no layer.

    Example:
        >>> import torch, jaxtorch
        >>> layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(12)).to("jax")
        >>> stack = jaxtorch.stack_layers(layers, remat=True)
        >>> stack.layer.weight.shape
        torch.Size([12, 4, 4])
        >>> stack(torch.randn(2, 4, device="jax")).sum().backward()
        >>> stack.layer.weight.grad.shape
        torch.Size([12, 4, 4])
        >>> [*stack.state_dict()][:3]
        ['0.weight', '0.bias', '1.weight']
    """
    return StackedLayers(layers, remat, ignore)


def _tensors(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from layer.named_parameters(remove_duplicate=False)
    yield from layer.named_buffers(remove_duplicate=False)


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """The stack of one tensor of each layer: a parameter if they are parameters."""
    with torch.no_grad():
        stacked = torch.stack([t.detach() for t in tensors])
    if isinstance(tensors[0], nn.Parameter):
        return nn.Parameter(stacked, requires_grad=tensors[0].requires_grad)
    return stacked


def _separate(stack: StackedLayers, state: dict[str, Tensor], prefix: str, _: object) -> None:
    """Replace the stacked tensors of a state by those of separate layers, with the names of a list of layers."""
    inner = f"{prefix}layer."
    stacked = {name: state.pop(name) for name in [*state] if name.startswith(inner)}
    for i in range(stack.count):
        for name, tensor in stacked.items():
            state[f"{prefix}{i}.{name.removeprefix(inner)}"] = tensor[i]


def _join(stack: StackedLayers, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """The inverse of `_separate`. A name that not all layers have stays, and is reported as unexpected."""
    for name, _tensor in _tensors(stack.layer):
        rows = [f"{prefix}{i}.{name}" for i in range(stack.count)]
        if all(row in state for row in rows):
            state[f"{prefix}layer.{name}"] = torch.stack([state.pop(row) for row in rows])
