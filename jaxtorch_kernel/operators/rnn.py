"""Recurrent networks, each as one JAX function, over time steps and over packed sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from ..base.torch_private import overload
from ..base.torch_views import composite_kernel
from ..dispatch.read import host_array
from ..dispatch.registry import kernel
from ..lowerings.rnn import CELLS, Cell, run_packed, run_steps
from ..programs import tracing
from ..programs.trees import is_device_tensor
from .composite import Composite

Tensor = torch.Tensor

_READS_LENGTHS = (
    "passed to pack_padded_sequence as lengths, which its sizes depend on (a list may be passed)"
)

State = Tensor | Sequence[Tensor]  # LSTMs have two tensors
# (input, states, weights, number of layers) -> output and final states
Layers = Callable[[Tensor, State, list[Tensor], int], tuple[Tensor, ...]]


def _with_dropout(
    run: Layers, x: Tensor, hx: State, params: list[Tensor], num_layers: int, p: float
) -> tuple[Tensor, ...]:
    """Run the layers with dropout between them; all at once if there is none."""
    if not p or num_layers < 2:
        return run(x, hx, params, num_layers)
    share = len(params) // num_layers
    finals = []
    for layer in range(num_layers):
        if layer:
            x = torch.dropout(x, p, True)
        weights = list(params[layer * share : (layer + 1) * share])

        def of_layer(state: Tensor, layer: int = layer) -> Tensor:
            directions = state.shape[0] // num_layers
            return state.narrow(0, layer * directions, directions)

        state = of_layer(hx) if isinstance(hx, Tensor) else [of_layer(s) for s in hx]
        x, *last = run(x, state, weights, 1)
        finals.append(last)
    return x, *(torch.cat(parts) for parts in zip(*finals, strict=True))


def _register_over_steps(name: str, cell: Cell) -> None:
    op = overload(f"{name}.input")
    if op is None:
        return
    composite = Composite(partial(run_steps, cell), op, static=("dropout",))

    @kernel(f"{name}.input")
    def over_steps(
        input: Tensor,
        hx: State,
        params: list[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, ...]:
        def run(x: Tensor, hx: State, params: list[Tensor], layers: int) -> tuple[Tensor, ...]:
            # Without dropout, training and evaluation are the same program.
            return composite(
                x, hx, params, has_biases, layers, 0.0, False, bidirectional, batch_first
            )

        return _with_dropout(run, input, hx, params, num_layers, dropout if train else 0.0)


def rounded_up(n: int) -> int:
    """The next number with three significant bits: at most a quarter more, and few numbers for all `n`.

    Example:
        >>> [rounded_up(n) for n in (3, 8, 9, 100)]
        [3, 8, 10, 112]
    """
    unit = 1 << max(n.bit_length() - 3, 0)
    return -(-n // unit) * unit


def _register_over_packed(name: str, cell: Cell) -> None:
    op = overload(f"{name}.data")
    if op is None:
        return

    def decomposition(
        data: Tensor,
        batch_sizes: Tensor,
        hx: State,
        params: list[Tensor],
        has_biases: bool,
        num_layers: int,
        bidirectional: bool,
    ) -> tuple[Tensor, ...]:
        sizes = batch_sizes.cpu().long()
        sizes = sizes[sizes > 0]
        rows = int(sizes.sum())
        out, *finals = op.decompose(
            data[:rows], sizes, hx, params, has_biases, num_layers, 0.0, False, bidirectional
        )
        return torch.nn.functional.pad(out, (0, 0, 0, data.shape[0] - rows)), *finals

    composite = Composite(
        partial(run_packed, cell), name=f"{name}.data", decomposition=decomposition
    )

    @kernel(f"{name}.data")
    def over_packed(
        data: Tensor,
        batch_sizes: Tensor,
        hx: State,
        params: list[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> tuple[Tensor, ...]:
        rows, steps = data.shape[0], len(batch_sizes)
        more_rows, more_steps = rounded_up(rows) - rows, rounded_up(steps) - steps
        padded = torch.nn.functional.pad(data, (0, 0, 0, more_rows)) if more_rows else data
        sizes = torch.nn.functional.pad(batch_sizes.int(), (0, more_steps)).to("jax")

        def run(x: Tensor, hx: State, params: list[Tensor], layers: int) -> tuple[Tensor, ...]:
            return composite(x, sizes, hx, params, has_biases, layers, bidirectional)

        p = dropout if train else 0.0
        out, *finals = _with_dropout(run, padded, hx, params, num_layers, p)
        return out.narrow(0, 0, rows), *finals


for _name, _cell in CELLS.items():
    _register_over_steps(_name, _cell)
    _register_over_packed(_name, _cell)


def _register_packing() -> None:
    op = overload("_pack_padded_sequence")
    if op is None:
        return
    torchs = composite_kernel(op)

    @kernel("_pack_padded_sequence")
    def pack(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        # torch requires lengths on the CPU. Those that captured code is called with are in the trace, wherever they
        # were: torch's error would say that they are on the device.
        if tracing.active() and is_device_tensor(lengths):
            host_array(lengths, _READS_LENGTHS)
        result: tuple[Tensor, Tensor] = torchs(input, lengths, batch_first)
        return result


_register_packing()
