"""Recurrent networks, `lstm`, `gru`, `rnn_tanh` and `rnn_relu`: one program per call, with a scan over time steps.

torch would run a dozen operators per step and layer. Here each layer and direction is one product of all steps with
the input weights, then a `jax.lax.scan` for the part that depends on the previous step. Single cells (`nn.LSTMCell`)
are in `recurrent.py`.

A packed sequence is laid out on a grid (time, batch) inside the program, and a state stays constant once its sequence
has ended. Each batch of sequences has a different number of rows, so rows and steps are rounded up, and the batch
sizes are an operand: a few programs serve all batches.

Dropout between layers splits a call into its layers, with torch's own dropout between them.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from .matmul import product
from .promote import widen
from .types import Array, Arrays

State = tuple[Array, ...]  # the hidden state, followed by the cell state in an LSTM
# (gates from the input, gates from the hidden state, state) -> the next state
Cell = Callable[[Array, Array, State], State]


def _lstm_cell(from_input: Array, from_hidden: Array, state: State) -> State:
    i, f, g, o = jnp.split(from_input + from_hidden, 4, -1)
    i, f, o = map(jax.nn.sigmoid, (i, f, o))
    c = f * state[1] + i * jnp.tanh(g)
    return o * jnp.tanh(c), c


def _gru_cell(from_input: Array, from_hidden: Array, state: State) -> State:
    reset_i, update_i, new_i = jnp.split(from_input, 3, -1)
    reset_h, update_h, new_h = jnp.split(from_hidden, 3, -1)
    reset, update = jax.nn.sigmoid(reset_i + reset_h), jax.nn.sigmoid(update_i + update_h)
    new = jnp.tanh(new_i + reset * new_h)
    return (new + update * (state[0] - new),)


def _tanh_cell(from_input: Array, from_hidden: Array, state: State) -> State:
    return (jnp.tanh(from_input + from_hidden),)


def _relu_cell(from_input: Array, from_hidden: Array, state: State) -> State:
    return (jax.nn.relu(from_input + from_hidden),)


CELLS: dict[str, Cell] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": _tanh_cell,
    "rnn_relu": _relu_cell,
}


def _direction(
    cell: Cell,
    x: Array,
    valid: Array | None,
    state: State,
    weights: list[Array],
    has_biases: bool,
    reverse: bool,
) -> tuple[Array, State]:
    """Run one layer in one direction; return the outputs of all steps and the last state."""
    dtype = x.dtype
    from_input = product(x, weights[0].T)
    if has_biases:
        from_input = from_input + weights[2]
    projection = weights[2 + 2 * has_biases :]

    def step(state: State, inputs: tuple[Array, Array | None]) -> tuple[State, Array]:
        gates, active = inputs
        from_hidden = product(state[0].astype(dtype), weights[1].T)
        if has_biases:
            from_hidden = from_hidden + weights[3]
        hidden, *rest = cell(gates, from_hidden, state)
        if projection:
            hidden = product(hidden.astype(dtype), projection[0].T)
        new: State = (hidden, *rest)
        if active is not None:
            new = tuple(
                jnp.where(active[:, None], n, old) for n, old in zip(new, state, strict=True)
            )
        return new, new[0].astype(dtype)

    # The states of half types stay float32 from step to step.
    last, outputs = jax.lax.scan(step, widen(*state), (from_input, valid), reverse=reverse)
    return outputs, tuple(s.astype(dtype) for s in last)


def _network(
    cell: Cell,
    x: Array,
    valid: Array | None,
    states: list[Array],
    params: list[Array],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
) -> tuple[Array, ...]:
    """Run all layers over (time, batch, features); return outputs and last states (layers * directions, batch, ...).

    Args:
        valid: (time, batch), True until a sequence has ended; None if none ends early.
    """
    directions = 1 + bidirectional
    share = len(params) // (num_layers * directions)
    finals = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            state = tuple(s[k] for s in states)
            weights = params[k * share : (k + 1) * share]
            reverse = direction == 1
            out, last = _direction(cell, x, valid, state, weights, has_biases, reverse)
            outputs.append(out)
            finals.append(last)
        x = jnp.concatenate(outputs, -1)
    return x, *(jnp.stack(parts) for parts in zip(*finals, strict=True))


def run_steps(
    cell: Cell,
    input: Array,
    hx: Array,
    params: Arrays,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Array, ...]:
    """`lstm.input`, `gru.input` and so on, without dropout."""
    x = input.swapaxes(0, 1) if batch_first else input
    states = hx if isinstance(hx, list) else [hx]
    out, *finals = _network(cell, x, None, states, params, has_biases, num_layers, bidirectional)
    return out.swapaxes(0, 1) if batch_first else out, *finals


def run_packed(
    cell: Cell,
    data: Array,
    batch_sizes: Array,
    hx: Array,
    params: Arrays,
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
) -> tuple[Array, ...]:
    """`lstm.data`, `gru.data` and so on, without dropout. Ignores rows after the last batch, and batches of size 0."""
    states = hx if isinstance(hx, list) else [hx]
    column = jnp.arange(states[0].shape[1], dtype=jnp.int32)
    valid = column < batch_sizes[:, None]
    first = jnp.cumsum(batch_sizes, dtype=jnp.int32) - batch_sizes
    # Cells outside the sequences get an index past the end, which reads 0 and drops writes.
    row = jnp.where(valid, first[:, None] + column, data.shape[0])
    x = data.at[row].get(mode="fill", fill_value=0)
    out, *finals = _network(cell, x, valid, states, params, has_biases, num_layers, bidirectional)
    packed = jnp.zeros((data.shape[0], out.shape[-1]), out.dtype)
    return packed.at[row].set(out, mode="drop"), *finals


# -- the kernels -----------------------------------------------------------------------------------
