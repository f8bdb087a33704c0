"""The shapes and dtypes that a torch function returns, inferred without running it or declared by the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from ...base.torch_private import FakeTensorMode
from ...storage.dtypes import to_numpy, to_torch
from .calls import Aval, Traits, has_tangent

Flat = Callable[..., list[Any]]


def inferred(
    function: Flat,
    ins: Sequence[Aval],
    traits: Traits,
    examples: Callable[[], Sequence[Any] | None],
) -> list[Aval]:
    """Shape and dtype of each result: of tensors without values or, where those do not go through, of `examples`.

    Args:
        function: of flat tensors, a list of leaves.
        ins: shape and dtype of its arguments.
        traits: records whether it writes to an argument.
        examples: gives tensors to run it on once, if it asks for a value; None while JAX traces: there are none.

    Raises:
        TypeError: it needs values, and there are none; or a result is not a tensor.
    """
    failed: Exception | None = None
    device = "cuda" if jax.default_backend() == "gpu" and torch.cuda.is_available() else "cpu"
    try:
        with (
            FakeTensorMode(allow_non_fake_inputs=True),
            torch.device(device),
            torch.inference_mode(False),
        ):
            arguments = [torch.empty(a.shape, dtype=to_torch(a.dtype)) for a in ins]
            results = function(*arguments)
        traits.copies |= any(t._version for t in arguments)
    except Exception as error:
        results, failed = [], error
    if failed is not None:
        values = examples()
        if values is None:
            raise TypeError(
                f"{traits.name} does not run on tensors without values ({type(failed).__name__}: {failed}), which is "
                "how the shapes of its results are found under a transform of JAX. Declare them: "
                "torch2jax(f, ..., output_shapes=...), or give example tensors."
            ) from failed
        with torch.no_grad():
            results = function(
                *(t.clone() for t in values)
            )  # its own mistake shows here without what came before
    return [_aval_of(traits, i, result) for i, result in enumerate(results)]


def _aval_of(traits: Traits, i: int, result: Any) -> Aval:
    if not isinstance(result, torch.Tensor):
        raise TypeError(
            f"{traits.name} returns a {type(result).__name__} (result {i}), but JAX accepts only tensors: return "
            "torch.as_tensor(value)."
        )
    return narrowed(tuple(result.shape), to_numpy(result.dtype))


def narrowed(shape: Sequence[int], dtype: Any) -> Aval:
    """With 32 bits where JAX's configuration has no 64."""
    return Aval(tuple(shape), jax.dtypes.canonicalize_dtype(dtype))


def declared(output_shapes: Any, ins: Sequence[Aval]) -> tuple[list[Aval], Any]:
    """A declaration as a user writes it: flat, and its tree.

    Args:
        output_shapes: a pytree of whatever has a shape and a dtype, or of shapes (`torch.Size`, tuples of ints), which
            then have the dtype of the floating arguments.
        ins: the arguments.
    """
    leaves, tree = jax.tree.flatten(output_shapes, is_leaf=_is_shape)
    return [_declared_aval(leaf, ins) for leaf in leaves], tree


def _is_shape(leaf: Any) -> bool:
    return isinstance(leaf, tuple | list) and all(isinstance(n, int) for n in leaf)


def _declared_aval(leaf: Any, ins: Sequence[Aval]) -> Aval:
    if _is_shape(leaf):
        floating = {a.dtype for a in ins if has_tangent(a)}
        if len(floating) != 1:
            found = ", ".join(sorted(map(str, floating))) or "none is floating"
            raise TypeError(
                f"output_shapes has the shape {tuple(leaf)} without a dtype, and the arguments do not determine it "
                f"({found}): write jax.ShapeDtypeStruct({tuple(leaf)}, dtype)"
            )
        return Aval(tuple(leaf), floating.pop())
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        raise TypeError(
            f"output_shapes has a {type(leaf).__name__} where a shape is expected: write torch.Size(...) or "
            "jax.ShapeDtypeStruct(shape, dtype)"
        )
    dtype = to_numpy(leaf.dtype) if isinstance(leaf.dtype, torch.dtype) else np.dtype(leaf.dtype)
    return narrowed(leaf.shape, dtype)
