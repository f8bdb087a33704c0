"""`scan_layers`: runs a stack of identical layers as one loop, so that tracing and compile time do not grow with depth.

The code of the first layer runs once. Its parameters and buffers are inputs of the traced body, and the loop passes
those of each layer in turn. They are stacked, if possible before the program runs (`hoisting.py`). In torch's graph the
call is one node whose inputs are the parameters of all layers, so each layer receives its own gradients.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import TypeVar

import jax
import numpy as np
import torch
from torch import nn

from ..base import torch_private as private
from ..base.torch_private import pytree
from ..programs import tracing
from ..programs.stacking import counter
from ..programs.trees import split
from ..storage.buffer import buffer_of, spec_of, wrap
from .alike import State, check_alike, check_whole, layers_of, state_of
from .bodies import Bound, Build, aval_of, call_bodies, trace_body
from .dependencies.open_recorders import read_whole
from .flow import over_iterations
from .hoisting import stack
from .scan import Carry, Remat, as_carry, as_tensor, check_carry, with_remat
from .static_functions import StaticFunctions, eager

Tensor = torch.Tensor
Arrays = list[jax.Array]
X = TypeVar("X")  # a tensor, or a pytree of tensors


def scan_layers(
    layers: Iterable[nn.Module],
    x: X,
    *shared: object,
    remat: Remat = False,
    ignore: Sequence[str] = (),
    **keywords: object,
) -> X:
    """Call identical layers one after the other, as one loop.

    Equivalent to

        for layer in layers:
            x = layer(x, *shared, **keywords)
        return x

    in a program whose size does not depend on the number of layers. Each layer gets its own `.grad`, its own dropout
    masks, and its own updated running statistics.

    Args:
        layers: modules of one class, with parameters of the same names, shapes and dtypes.
        x: the input of the first layer: a tensor or a pytree of them. Each layer returns the same structure. If it is
            a tuple, and a layer cannot be called with it as one argument, its elements are separate arguments.
        shared: further arguments, the same for each layer.
        remat: save only each layer's input for the backward pass and recompute the rest (`jax.checkpoint`). A policy
            of `jax.checkpoint_policies`, or its name, selects residuals to save in addition.
        ignore: plain attributes in which layers may differ, because their code does not use them (`"layer_idx"`).
        keywords: further keyword arguments.

    Returns:
        The output of the last layer, with the structure, shapes and dtypes of `x`.

    Raises:
        CaptureError: if the layers differ; the message says where.
        TypeError: if a layer is not a module on the device, or its output differs from its input in structure, shape
            or dtype.

    Example:
        >>> import torch, jaxtorch
        >>> layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(12)).to("jax")
        >>> x = torch.randn(2, 4, device="jax")
        >>> jaxtorch.scan_layers(layers, x, remat=True).sum().backward()
        >>> layers[11].weight.grad.shape
        torch.Size([4, 4])
    """
    modules = layers_of(layers, "scan_layers")
    if not modules:
        return x
    apart = _takes_parts(modules[0], x, shared, keywords)
    if private.transformed():  # a transform of torch.func must see each call
        for layer in modules:
            x = layer(*(x if apart else (x,)), *shared, **keywords)  # type: ignore[misc]  # apart: a tuple
        return x
    rest = x, apart, shared, keywords, remat, tuple(ignore)
    if tracing.active():
        return _scan_layers(tuple(modules), *rest)
    return _eager_scan_layers(StaticFunctions(*modules), *rest)


def _takes_parts(
    layer: nn.Module, x: object, shared: tuple[object, ...], keywords: dict[str, object]
) -> bool:
    """Whether the elements of a tuple `x` are separate arguments of a layer: it cannot be called with the tuple."""
    if type(x) is not tuple:
        return False
    try:
        signature = inspect.signature(layer.forward)
    except ValueError:  # not written in Python
        return False
    return not _binds(signature, x, *shared, **keywords) and _binds(
        signature, *x, *shared, **keywords
    )


def _binds(signature: inspect.Signature, *args: object, **kwargs: object) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _scan_layers(
    layers: tuple[nn.Module, ...],
    x: X,
    apart: bool,
    shared: tuple[object, ...],
    keywords: dict[str, object],
    remat: Remat,
    ignore: tuple[str, ...],
) -> X:
    states = [state_of(layer) for layer in layers]
    template = states[0]
    for i, layer in enumerate(layers):
        read_whole(layer)
        check_whole(states[i], i)
        check_alike(layers[0], layer, template, states[i], i, ignore)
    first, structure = pytree.tree_flatten(x)
    carry = [as_tensor(leaf) for leaf in first]
    operands, rest = split((shared, keywords))

    def flat(*tensors: Tensor) -> list[Tensor]:
        args, kwargs = rest.filled(tensors[len(carry) :])
        value = pytree.tree_unflatten(tensors[: len(carry)], structure)
        result = layers[0](*(value if apart else (value,)), *args, **kwargs)
        return as_carry(result, structure, "stack of layers")

    inputs = [*carry, *operands]
    body = trace_body(
        flat, list(map(aval_of, inputs)), "a layer of scan_layers", state=template.tensors
    )
    check_carry(body, carry, "stack of layers")
    count = len(carry)

    each = [t for state in states for t in state.tensors]
    differentiable = [output.differentiable for output in body.outputs] + [False] * len(
        body.written
    )
    everything = [*inputs, *each, *_numbers(states)]

    def of_each(i: int) -> Sequence[int]:
        """The operands of the call for one operand of the body: for a tensor of a layer, those of all layers."""
        if i < len(inputs):
            return [i]
        return range(i, len(inputs) + len(each), template.size)

    flow = [f.renumbered(of_each) for f in over_iterations(body.flow, count, len(layers))]
    loop = _loop(count, len(inputs), template.size, len(layers), remat)
    results = call_bodies("scan_layers", loop, everything, [body], differentiable, flow)
    _write_back(states, body.written, results[count:])
    last: X = pytree.tree_unflatten(results[:count], structure)
    return last


def _loop(carried: int, inputs: int, parts: int, depth: int, remat: Remat) -> Build:
    """The JAX side of the call: a scan over `depth` layers.

    Its operands are `inputs` arrays (first the `carried` ones, then the shared arguments), then the `parts` tensors of
    each layer, then the row numbers.
    """

    def build(bodies: list[Bound], key: jax.Array, arrays: Arrays) -> tuple[Arrays, jax.Array]:
        state, constants = arrays[:carried], arrays[carried:inputs]
        each = arrays[inputs : inputs + depth * parts]
        numbers = arrays[inputs + len(each) :]
        stacked = [stack(each[i::parts], numbers) for i in range(parts)]

        def step(state: Carry, of_layer: Arrays) -> tuple[Carry, Arrays]:
            results, key = with_remat(bodies[0], remat)(state[0], *state[1], *constants, *of_layer)
            return (key, results[:carried]), results[carried:]

        (key, last), written = jax.lax.scan(step, (key, state), stacked, depth)
        return [*last, *written], key

    return build


def _write_back(
    states: Sequence[State], written: Sequence[Tensor], stacked: Sequence[Tensor]
) -> None:
    """Give each layer its row of the new values; `written` are the tensors of the first layer that changed."""
    with torch.no_grad():
        for target, values in zip(written, stacked, strict=True):
            index = next(i for i, t in enumerate(states[0].tensors) if t is target)
            for state, value in zip(states, values.unbind(), strict=True):
                state.tensors[index].copy_(value)


_eager_scan_layers = eager(_scan_layers)
_row_numbers: dict[jax.sharding.Sharding, list[Tensor]] = {}


def _numbers(layers: Sequence[State]) -> list[Tensor]:
    """0, 1, 2, ... in the placement of the layers. The tensors outlive the trace, so they are inputs of the program."""
    if not layers[0].tensors:
        return []
    aval = counter(buffer_of(layers[0].tensors[0]).spec.placement)
    known = _row_numbers.setdefault(aval.sharding, [])
    for i in range(len(known), len(layers)):
        with jax.ensure_compile_time_eval():  # in an open trace
            array = jax.device_put(np.int32(i), aval.sharding)
        known.append(wrap(array, spec_of(aval.dtype, (), aval.sharding), (), torch.int32))
    return known[: len(layers)]
