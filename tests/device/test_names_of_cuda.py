"""`torch.jax` beside `torch.cuda`: the table of the documentation, signatures, and the names that cuda has, too."""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from scripts import torch_jax_table as table


def test_the_table_is_that_of_both_modules() -> None:
    """It is written with torch 2.13. With a later version each row is in it, or the row of a name that is new."""
    page = table.PAGE.read_text("utf-8").splitlines()
    rows = [row for row in table.text().splitlines() if row not in page]
    is_older = torch.__version__ < "2.14"
    assert not rows if is_older else all(row.startswith("| `") for row in rows), (
        "python -m scripts.torch_jax_table"
    )
    assert len(rows) < 10


def test_no_reason_is_given_for_a_name_that_exists() -> None:
    assert not set(table._REASON_OF) & set(torch.jax.__all__)


SAME = sorted(set(table.public_names()) & set(torch.jax.__all__))
# Classes whose constructors are in C++, and a function whose parameter concerns cuda alone.
OTHER_SIGNATURES = {"Event", "ExternalStream", "Stream", "OutOfMemoryError", "is_bf16_supported"}


@pytest.mark.parametrize(
    "name", [n for n in SAME if callable(getattr(torch.cuda, n)) and n not in OTHER_SIGNATURES]
)
def test_a_call_for_cuda_is_a_call_for_jax(name: str) -> None:
    """The parameters of cuda's function come first, by the same names, in the same order."""
    theirs = inspect.signature(getattr(torch.cuda, name)).parameters
    ours = inspect.signature(getattr(torch.jax, name)).parameters
    assert len(ours) >= len(theirs)
    for (their_name, their), (our_name, our) in zip(theirs.items(), ours.items(), strict=False):
        assert our_name == their_name
        assert (our.default is our.empty) <= (their.default is their.empty)


@pytest.mark.parametrize("name", ["amp", "memory", "random", "streams"])
def test_a_submodule_has_the_names_of_cudas(name: str) -> None:
    public = getattr(getattr(torch.cuda, name), "__all__", [])
    for inner in {*public} - {"amp_definitely_not_available"}:
        if inner in torch.jax.__all__:
            assert getattr(getattr(torch.jax, name), inner) is getattr(torch.jax, inner)
        else:
            assert inner in table._REASON_OF or hasattr(getattr(torch.jax, name), inner), inner


def test_submodules_are_imported_as_cudas_are() -> None:
    program = """
import sys
import torch
import torch.jax.memory as memory
from torch.jax.amp import GradScaler, autocast, custom_bwd, custom_fwd
print("jax" in sys.modules, memory.memory_allocated() == 0, memory is torch.jax.memory)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["False", "True", "True"]
    with pytest.raises(AttributeError):
        torch.jax.memory.no_such_name  # noqa: B018


class TestPlacement:
    def test_device_of(self) -> None:
        x = torch.ones(3, device="jax")
        for tensor in (x, x[1:], torch.ones(3)):
            with torch.jax.device_of(tensor):
                assert torch.zeros(2, device="jax").device == x.device

    def test_peers(self) -> None:
        assert not torch.jax.can_device_access_peer(0, 0)
        with pytest.raises(RuntimeError, match="invalid jax device index 1000"):
            torch.jax.can_device_access_peer(0, 1000)

    def test_with_two_devices(self) -> None:
        program = """
import jax, torch
with torch.jax.device(1):
    x = torch.ones(3, device="jax")
with torch.jax.device_of(x):
    y = torch.zeros(2, device="jax")
z = torch.zeros(2, device="jax")
holder = lambda t: next(iter(t.untyped_storage().buffer.array.devices())).id
print(holder(x), holder(y), holder(z), torch.jax.can_device_access_peer(0, 1), y.device.index, torch.jax.device_count())
"""
        run = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "JAX_NUM_CPU_DEVICES": "2"},
        )
        assert run.stdout.split() == ["1", "1", "0", "True", "0", "1"]


@contextmanager
def _garbage_stays() -> Iterator[None]:
    """Arrays that other tests left in reference cycles live on until the end of this block."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class TestMemory:
    def test_a_snapshot_has_every_array(self) -> None:
        kept = torch.ones(1234, 3, device="jax")
        with _garbage_stays():
            found, allocated = torch.jax.memory_snapshot(), torch.jax.memory_allocated()
        assert kept.nbytes in [segment["total_size"] for segment in found]
        assert sum(segment["total_size"] for segment in found) == allocated
        assert sum(b["size"] for s in found for b in s["blocks"]) == allocated
        assert {segment["device"] for segment in found} == {0}

    def test_figures(self) -> None:
        nested = torch.jax.memory_stats_as_nested_dict()
        flat = torch.jax.memory_stats()
        assert nested["allocated_bytes"]["all"]["current"] == flat["allocated_bytes.all.current"]
        assert 0 < torch.jax.device_memory_used() < torch.jax.mem_get_info()[1]
        kept = torch.ones(1 << 20, device="jax")
        del kept
        torch.jax.reset_max_memory_allocated()
        assert torch.jax.max_memory_allocated() == torch.jax.memory_allocated()
        torch.jax.reset_accumulated_memory_stats()
        torch.jax.ipc_collect()

    def test_memory_that_is_not_there(self) -> None:
        with pytest.raises(torch.jax.OutOfMemoryError):
            raise torch.OutOfMemoryError("no memory")


class TestAmp:
    def test_autocast(self) -> None:
        x = torch.ones(4, 4, device="jax")
        with torch.jax.amp.autocast():
            assert (x @ x).dtype == torch.bfloat16
        with torch.jax.amp.autocast(dtype=torch.float16):
            assert (x @ x).dtype == torch.float16
        with torch.jax.amp.autocast(enabled=False):
            assert (x @ x).dtype == torch.float32
        assert torch.jax.amp.autocast()(lambda: (x @ x).dtype)() == torch.bfloat16

    def test_a_scaler_steps(self) -> None:
        weight = torch.ones(3, device="jax", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler = torch.jax.amp.GradScaler(init_scale=8.0)
        scaler.scale(weight.sum()).backward()
        assert weight.grad.tolist() == [8, 8, 8]
        scaler.step(optimizer)
        scaler.update()
        assert weight.tolist() == [0, 0, 0]

    def test_custom_functions(self) -> None:
        seen = []

        class Double(torch.autograd.Function):
            @staticmethod
            @torch.jax.amp.custom_fwd(cast_inputs=torch.float16)
            def forward(ctx, x):
                seen.append(x.dtype)
                return x * 2

            @staticmethod
            @torch.jax.amp.custom_bwd
            def backward(ctx, gradient):
                seen.append(torch.is_autocast_enabled("jax"))
                return gradient * 2

        x = torch.ones(2, device="jax", requires_grad=True)
        with torch.jax.amp.autocast():
            y = Double.apply(x).sum()
        y.backward()
        assert seen == [torch.float16, False]
        assert x.grad.tolist() == [2, 2]


def test_streams() -> None:
    stream = torch.jax.Stream()
    scope = torch.jax.stream(stream)
    assert isinstance(scope, torch.jax.StreamContext)
    with scope, torch.jax.StreamContext(None):
        assert torch.ones(2, device="jax").sum() == 2
