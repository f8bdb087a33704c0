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
from torch.nn.parallel import comm, gather, scatter
from torch.utils._pytree import tree_leaves, tree_map

import jaxtorch

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
@pytest.mark.sampled(12)
def test_module(info: ModuleInfo, training: bool) -> None:
    gap = GAPS.get(entry_name(info))
    if gap is None:
        _check(info, training)
        return
    with pytest.raises(Exception):  # noqa: B017, PT011  (whatever way it fails)
        _check(info, training)


PARALLEL = {
    "DataParallel": lambda m, x: torch.nn.DataParallel(m)(x),
    "device_ids": lambda m, x: torch.nn.DataParallel(m, device_ids=[0])(x),
    "of an input on the CPU": lambda m, x: torch.nn.DataParallel(m)(x.cpu()),
    "an argument by name": lambda m, x: torch.nn.DataParallel(m)(input=x),
    "of a captured module": lambda m, x: torch.nn.DataParallel(jaxtorch.pure(m))(x),
    "captured": lambda m, x: jaxtorch.pure(torch.nn.DataParallel(m))(x),
    "in captured code": lambda m, x: jaxtorch.pure(lambda x: torch.nn.DataParallel(m)(x))(x),
    "data_parallel": lambda m, x: torch.nn.parallel.data_parallel(m, x),
    "replicate": lambda m, x: torch.nn.parallel.replicate(m, [0])[0](x),
    "scatter and gather": lambda m, x: gather(
        [m(part) for part in scatter(x, [0])], torch.device("jax")
    ),
    "gather from halves": lambda m, x: gather([m(x[:1]), m(x[1:])], 0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("run", PARALLEL.values(), ids=PARALLEL)
def test_data_parallelism_over_the_one_device_is_the_module(run: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=dtype)
    module = torch.nn.Linear(4, 2, dtype=dtype)
    expected = module(x)
    expected.abs().sum().backward()
    copied = copy.deepcopy(module).to("jax")
    copied.zero_grad()
    result = run(copied, x.to("jax"))
    result.abs().sum().backward()
    assert result.device.type == "jax"
    torch.testing.assert_close(result.cpu(), expected)
    torch.testing.assert_close(copied.weight.grad.cpu(), module.weight.grad)


def test_data_parallelism_over_devices_that_torch_has_not() -> None:
    module = torch.nn.Linear(4, 2).to("jax")
    with pytest.raises(RuntimeError, match="torch sees one jax device"):
        torch.nn.DataParallel(module, device_ids=[0, 1])(torch.ones(3, 4, device="jax"))


def test_a_gathered_result_on_the_cpu() -> None:
    x = torch.arange(6.0, device="jax").view(2, 3)
    assert torch.equal(gather([x, x], "cpu"), torch.cat([x.cpu(), x.cpu()]))


def test_copies_between_devices() -> None:
    x = torch.arange(6.0, device="jax").view(2, 3)
    copies = [
        comm.scatter(x, out=[torch.empty_like(x)]),
        comm.broadcast(x, [0]),
        comm.broadcast(x, out=[torch.empty_like(x)]),
        *comm.broadcast_coalesced([x], [0]),
        [comm.gather(list(x.split(1)), out=torch.empty_like(x))],
        [comm.reduce_add([x / 2, x / 2])],
    ]
    for (copied,) in copies:
        assert torch.equal(copied.cpu(), torch.arange(6.0).view(2, 3))
