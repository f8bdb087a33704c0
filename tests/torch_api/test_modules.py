"""Every module of `torch.nn` that PyTorch's own tests list (`module_db`), on the device against the CPU.

Forward and backward, in training and in evaluation: results, gradients of inputs and of parameters. A declared gap
still runs and has to fail, so that the list cannot outlive its reasons.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

os.environ.setdefault("PYTORCH_TESTING_DEVICE_ONLY_FOR", "cpu")

from torch.testing._internal.common_modules import ModuleInfo, module_db

INPUTS = 4  # the first of each entry

# Entry -> why the device cannot agree with the CPU.
GAPS: dict[str, str] = {}


def entry_name(info: ModuleInfo) -> str:
    """The module's name, as torch prints it."""
    return info.name


def _moved(tree: Any, device: str) -> Any:
    """A copy of nested tensors and modules on a device, with leaves that ask for what the originals ask."""

    def move(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.detach().clone().to(device).requires_grad_(x.requires_grad)
        return copy.deepcopy(x).to(device) if isinstance(x, torch.nn.Module) else x

    return tree_map(move, tree)


def _run(
    module: torch.nn.Module, args: Any, kwargs: Any, seed: int = 3
) -> list[torch.Tensor | None]:
    """Results, then gradients of inputs, parameters, and the buffers afterwards."""
    torch.manual_seed(seed)
    result = module(*args, **kwargs)
    outputs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
    leaves = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    leaves += [p for p in module.parameters() if not torch.nn.parameter.is_lazy(p)]
    leaves = [t for t in leaves if t.requires_grad]
    differentiable = [o for o in outputs if o.requires_grad]
    grads: list[torch.Tensor | None] = []
    if differentiable and leaves:
        generator = torch.Generator().manual_seed(4)
        cotangents = [
            torch.randn(o.shape, generator=generator).to(o.device, o.dtype) for o in differentiable
        ]
        grads = list(torch.autograd.grad(differentiable, leaves, cotangents, allow_unused=True))
    return [*outputs, *grads, *module.buffers()]


def _equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.allclose(a, b, equal_nan=True))


def _inputs(info: ModuleInfo, training: bool) -> Iterator[tuple[torch.nn.Module, Any, Any]]:
    torch.manual_seed(0)
    made = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    )
    for _, given in zip(range(INPUTS), made, strict=False):
        if given.forward_input is None:
            continue
        torch.manual_seed(1)
        module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs)
        # Samples that a module keeps (FractionalMaxPool) are made as float64.
        module.to(torch.float32).train(training)
        yield module, given.forward_input.args, given.forward_input.kwargs


def _check(info: ModuleInfo, training: bool) -> None:
    for module, args, kwargs in _inputs(info, training):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = _run(copy.deepcopy(module), *_moved((args, kwargs), "cpu"))
            again = _run(copy.deepcopy(module), *_moved((args, kwargs), "cpu"), seed=5)
            actual = _run(copy.deepcopy(module).to("jax"), *_moved((args, kwargs), "jax"))
        assert len(actual) == len(expected)
        random = not all(map(_equal, expected, again))
        for a, e in zip(actual, expected, strict=True):
            if e is None:
                assert a is None
                continue
            assert a is not None
            assert a.device.type == "jax"
            if random:
                assert a.shape == e.shape
            else:
                torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("info", module_db, ids=entry_name)
def test_module(info: ModuleInfo, training: bool) -> None:
    gap = GAPS.get(entry_name(info))
    if gap is None:
        _check(info, training)
        return
    with pytest.raises(Exception):  # noqa: B017, PT011  (whatever way it fails)
        _check(info, training)
