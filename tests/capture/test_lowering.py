"""`pure(f).lower`: text, costs and memory of a captured program, for this machine and for a TPU that is not there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas as pl
from torch import nn

import jaxtorch
from jaxtorch.capture.tpu import CompileError, Compiler, shared_compiler
from tests.libtpu import missing


@pytest.fixture
def layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(8, 4).to("jax")


def test_every_form_of_a_program(layer: nn.Module) -> None:
    calls = 0

    @jaxtorch.pure
    def f(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return layer(x).relu()

    x = torch.randn(2, 8, device="jax")
    lowered = f.lower(x)
    assert "dot_general" in str(lowered.jaxpr)
    assert lowered.stablehlo.count("stablehlo.dot_general") == 1
    compiled = lowered.compile()
    assert compiled.hlo.startswith("HloModule jit_f")
    assert compiled.cost_analysis()["flops"] >= 2 * 2 * 8 * 4
    assert compiled.memory_analysis()["argument_size_in_bytes"] == 4 * (2 * 8 + 8 * 4 + 4)
    assert compiled.memory_analysis()["output_size_in_bytes"] == 4 * 2 * 4
    assert compiled.device == jax.devices()[0].device_kind
    assert calls == 0  # nothing has run
    torch.testing.assert_close(f(x), layer(x).relu())
    assert calls == 1
    assert f.cache_info().misses == 1  # the call runs what was lowered


def test_gradients_are_one_program_with_the_forward(layer: nn.Module) -> None:
    f = jaxtorch.pure(lambda x: layer(x).tanh())
    x = torch.randn(2, 8, device="jax")
    lowered = f.lower(x, gradients=True)
    shapes = [tuple(aval.shape) for aval in lowered.jaxpr.out_avals]
    assert shapes[0] == (2, 4)
    assert sorted(shapes[1:]) == [(4,), (4, 8)]
    # x @ w, and the gradient of w; nobody asks for that of x
    assert lowered.stablehlo.count("stablehlo.dot_general") == 2
    with torch.no_grad(), pytest.raises(ValueError, match="requires a gradient"):
        f.lower(x, gradients=True)


def test_a_target_that_is_none_and_a_compiler_that_is_missing(
    layer: nn.Module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    f, x = jaxtorch.pure(layer), torch.randn(2, 8, device="jax")
    with pytest.raises(ValueError, match="v5e:1x1"):
        f.lower(x, target="v5e")
    monkeypatch.setenv("JAXTORCH_LIBTPU", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    lowered = f.lower(x, target="v5e:1x1")
    assert "dot_general" in lowered.stablehlo  # text takes no compiler
    with pytest.raises(CompileError, match="pip install"):
        lowered.compile()


# -- with the TPU's compiler --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def libtpu() -> Iterator[None]:
    """Skips where the compiler is not installed: it is 600 MB, and no process but the compiling one may see it."""
    if reason := missing():
        pytest.skip(reason)
    with shared_compiler():
        yield


@pytest.mark.usefixtures("libtpu")
def test_forward_and_backward_for_a_tpu(layer: nn.Module) -> None:
    f = jaxtorch.pure(lambda x: layer(x).tanh().double().sum())
    compiled = f.lower(torch.randn(2, 8, device="jax"), target="v5e:1x1", gradients=True).compile()
    assert compiled.device == "TPU v5 lite"
    assert ",128)}" in compiled.hlo  # a TPU's tiles
    assert "transpose(jvp(Linear))" in compiled.hlo
    assert compiled.cost_analysis()["flops"] > 0
    assert compiled.memory_analysis()["temp_size_in_bytes"] >= 0


@pytest.mark.usefixtures("libtpu")
def test_a_pallas_kernel_for_a_tpu() -> None:
    def kernel(x_ref, o_ref):  # type: ignore[no-untyped-def]
        o_ref[...] = jnp.tanh(x_ref[...])

    def tanh(x: jax.Array) -> jax.Array:
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    f = jaxtorch.pure(lambda x: jaxtorch.call_jax(tanh, x))
    compiled = f.lower(torch.ones(8, 128, device="jax"), target="v5e:1x1").compile()
    assert "tpu_custom_call" in compiled.hlo


@pytest.mark.usefixtures("libtpu")
def test_what_a_tpu_cannot_do_is_said() -> None:
    f = jaxtorch.pure(lambda x: x + 1)
    with pytest.raises(CompileError, match="v99:1x1"):
        f.lower(torch.ones(3, device="jax"), target="v99:1x1").compile()


@pytest.mark.usefixtures("libtpu")
def test_a_compiler_that_dies_says_so_and_starts_again() -> None:
    compiler = Compiler()
    lowered = jaxtorch.pure(lambda x: x + 1).lower(torch.ones(3, device="jax"), target="v5e:1x1")
    first = compiler.compile(lowered._serialized(), "v5e:1x1")
    assert compiler._process is not None
    process = compiler._process.pid
    assert compiler.compile(lowered._serialized(), "v5e:1x1") == first
    assert compiler._process.pid == process  # one for both
    os.kill(process, signal.SIGKILL)
    with pytest.raises(CompileError, match="ended with -9"):
        compiler.compile(lowered._serialized(), "v5e:1x1")
    assert compiler.compile(lowered._serialized(), "v5e:1x1") == first
    compiler.close()
