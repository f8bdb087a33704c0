"""The shapes and dtypes that a torch function returns, inferred without running it or declared by the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeGuard

import jax
import numpy as np
import torch
from jax.tree_util import PyTreeDef

from ...base.torch_private import FakeTensorMode
from ...storage.dtypes import to_numpy, to_torch
from .addresses import NoAddress, ReadOnlyAddresses, tried
from .calls import Aval, Traits, has_tangent

Flat = Callable[..., list[torch.Tensor]]


def torch_device() -> str:
    """The torch device whose memory JAX's default platform uses; the CPU for a platform without torch kernels."""
    return "cuda" if jax.default_backend() == "gpu" and torch.cuda.is_available() else "cpu"


def inferred(
    function: Flat,
    ins: Sequence[Aval],
    traits: Traits,
    examples: Callable[[], Sequence[torch.Tensor] | None],
) -> list[Aval]:
    """Shape and dtype of each result, inferred from a run on tensors without values or, if that fails, on `examples`.

    Args:
        function: takes flat tensors and returns a list of leaves, which must be tensors.
        ins: shape and dtype of its arguments.
        traits: records whether it writes to an argument.
        examples: returns tensors for one run, in case the function needs values; None while JAX is tracing.

    Raises:
        TypeError: the function needs values while JAX is tracing, or a result is not a tensor.
    """
    try:
        results = _run_without_values(function, ins, traits, ReadOnlyAddresses())
    except Exception as error:
        failed = error
    else:
        return _avals_of(traits, results)
    # Outside of the `except`, so that an error of the function is not chained to the first one.
    values = examples()
    takes_addresses = isinstance(failed, NoAddress)
    if values is None and takes_addresses:  # it may not look there
        return _avals_of(traits, _run_without_values(function, ins, traits, nullcontext()))
    if values is None:
        raise TypeError(
            f"jaxtorch cannot infer the result shapes of {traits.name} under a transform of JAX "
            f"({type(failed).__name__}: {failed}). Declare them with torch2jax(f, ..., output_shapes=...), or give "
            "example tensors."
        ) from failed
    with torch.no_grad():
        if takes_addresses:
            results = tried(lambda tensors: function(*tensors), values, traits)
        else:
            results = function(*(t.clone() for t in values))
    return _avals_of(traits, results)


def _run_without_values(
    function: Flat, ins: Sequence[Aval], traits: Traits, mode: AbstractContextManager[object]
) -> list[torch.Tensor]:
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.device(torch_device()),
        torch.inference_mode(False),
        mode,
    ):
        arguments = [torch.empty(a.shape, dtype=to_torch(a.dtype)) for a in ins]
        results = function(*arguments)
    traits.copies |= any(t._version for t in arguments)
    return results


def _avals_of(traits: Traits, results: Sequence[torch.Tensor]) -> list[Aval]:
    return [_aval_of(traits, i, result) for i, result in enumerate(results)]


def _aval_of(traits: Traits, i: int, result: object) -> Aval:
    if not isinstance(result, torch.Tensor):
        raise TypeError(
            f"{traits.name} returns a {type(result).__name__} (result {i}), but JAX accepts only tensors: return "
            "torch.as_tensor(value)."
        )
    return narrowed(tuple(result.shape), to_numpy(result.dtype))


def narrowed(shape: Sequence[int], dtype: np.dtype) -> Aval:
    """An aval with 32 bits in place of 64, unless JAX is configured for 64."""
    return Aval(tuple(shape), jax.dtypes.canonicalize_dtype(dtype))


def declared(output_shapes: object, ins: Sequence[Aval]) -> tuple[list[Aval], PyTreeDef]:
    """The flat shapes and dtypes of a user's declaration, and its tree.

    Args:
        output_shapes: a pytree of objects with a shape and a dtype, or of shapes (`torch.Size`, tuples of ints). A
            shape alone gets the dtype of the floating arguments.
        ins: shapes and dtypes of the arguments.
    """
    leaves, tree = jax.tree.flatten(output_shapes, is_leaf=_is_shape)
    return [_declared_aval(leaf, ins) for leaf in leaves], tree


def _is_shape(leaf: object) -> TypeGuard[Sequence[int]]:
    return isinstance(leaf, tuple | list) and all(isinstance(n, int) for n in leaf)


def _declared_aval(leaf: object, ins: Sequence[Aval]) -> Aval:
    if _is_shape(leaf):
        floating = {a.dtype for a in ins if has_tangent(a)}
        if len(floating) != 1:
            dtypes = ", ".join(sorted(map(str, floating))) or "none is floating"
            raise TypeError(
                f"output_shapes has the shape {tuple(leaf)} without a dtype, and the arguments do not determine it "
                f"({dtypes}): write jax.ShapeDtypeStruct({tuple(leaf)}, dtype)"
            )
        return Aval(tuple(leaf), floating.pop())
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        raise TypeError(
            f"output_shapes has a {type(leaf).__name__} where a shape is expected: write torch.Size(...) or "
            "jax.ShapeDtypeStruct(shape, dtype)"
        )
    dtype = to_numpy(leaf.dtype) if isinstance(leaf.dtype, torch.dtype) else np.dtype(leaf.dtype)
    return narrowed(leaf.shape, dtype)
