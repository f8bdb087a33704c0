"""A torch module as a function of its parameters, for JAX's optimizers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from ...capture.jax_view import jax_view
from ..values import to_jax
from .torch2jax import torch2jax


def module_to_jax(
    module: torch.nn.Module, *, mutable: bool = False, rng: bool = False
) -> tuple[Callable[..., Any], Any]:
    """A torch module as `(apply, params)`: a JAX function, and its parameters as a pytree of arrays.

    `apply(params, *args)` runs the module with torch's own kernels (`torch2jax`) or, if it is on the jax device,
    compiles it into the JAX program (`jax_view`). The module itself is never changed: its parameters are copied, and
    buffers that a call writes to, such as BatchNorm's running statistics, are local to the call.

    Args:
        module: a `torch.nn.Module`, in the mode (`train()`, `eval()`) in which it should run.
        mutable: the module writes to its buffers: `params` is a pair (parameters, buffers), and `apply` returns a pair
            (result, new buffers).
        rng: the module draws random numbers (dropout): `apply(params, key, *args)`.

    Returns:
        `(apply, params)`; with `mutable`, `(apply, (params, buffers))`. `params` is a dict of arrays by the names of
        `named_parameters()`; tied weights appear once.

    Raises:
        TypeError: `module` is not a `torch.nn.Module`.

    Example:
        >>> import jax, jax.numpy as jnp, torch, jaxtorch
        >>> apply, params = jaxtorch.module_to_jax(torch.nn.Linear(3, 2))
        >>> loss = lambda params, x: (apply(params, x) ** 2).mean()
        >>> sorted(jax.grad(loss)(params, jnp.ones((4, 3))))
        ['bias', 'weight']
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"module_to_jax takes a torch.nn.Module, not {type(module).__name__}: see torch2jax"
        )
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    on_jax = any(t.device.type == "jax" for t in (*parameters.values(), *buffers.values()))

    def call(given: Any, *args: object, **kwargs: object) -> object:
        values, state = given if mutable else (given, buffers)
        # The module may write to its buffers, so they are copied.
        state = {name: tensor.detach().clone() for name, tensor in state.items()}
        result = torch.func.functional_call(module, {**values, **state}, args, kwargs)
        return (result, state) if mutable else result

    call.__name__ = type(module).__name__
    params = {name: to_jax(p.detach().clone()) for name, p in parameters.items()}
    apply = _for_params_first(call, on_jax, rng)
    if not mutable:
        return apply, params
    return apply, (params, {name: to_jax(b.clone()) for name, b in buffers.items()})


def _for_params_first(call: Callable[..., object], on_jax: bool, rng: bool) -> Callable[..., Any]:
    """The JAX function `apply`, which takes the parameters before the key."""
    # During `functional_call` the parameters are in the module, where calls of other threads would see them.
    lock = threading.RLock()
    function = jax_view(call, rng=rng) if on_jax else torch2jax(call, rng=rng, lock=lock)
    if not rng:
        return function

    def apply(params: object, key: object, *args: object, **kwargs: object) -> object:
        return function(key, params, *args, **kwargs)

    return apply
