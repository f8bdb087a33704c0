"""`pure(f).lower`: text, costs and memory of a captured program, for this machine and for a TPU that is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import pallas as pl
from torch import nn

import jaxtorch
from jaxtorch.capture.tpu import CompileError, shared, shared_compiler
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
    with torch.no_grad(), pytest.raises(ValueError, match="has no gradients"):
        f.lower(x, gradients=True)


CALLS: dict[str, tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]] = {
    "one result": (lambda a: a * 2, [(3,)], {}),
    "containers": (lambda a: {"z": [a * 2, (a + 1,)], "y": a}, [(3,)], {}),
    "arguments by name": (lambda a, *, b, c: (b * a, c), [(3,)], {"c": (2,), "b": (3,)}),
    "containers of arguments": (lambda a, b: a["x"] @ b[0], [{"x": (2, 3)}, [(3, 4)]], {}),
    "a view of an argument": (lambda a: a[None, :1], [(3,)], {}),
    "views of a result": (lambda a: [b := a * 2, b.reshape(2, 3)], [(6,)], {}),
}


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
@pytest.mark.parametrize("made", ["tensor", "meta tensor", "ShapeDtypeStruct"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_stages_are_those_of_jax(
    capture: Callable[..., Any], made: str, call: tuple[Any, Any, Any]
) -> None:
    function, *shapes = call

    def arguments(of: Callable[[tuple[int, ...]], Any]) -> Any:
        return jax.tree.map(of, shapes, is_leaf=lambda s: isinstance(s, tuple))

    infos = arguments(lambda shape: jax.ShapeDtypeStruct(shape, "float32"))
    tensors = arguments(lambda shape: torch.ones(shape, device="jax"))
    of_jax = jax.jit(function).lower(*infos[0], **infos[1])
    args, kwargs = {
        "tensor": tensors,
        "meta tensor": arguments(lambda shape: torch.ones(shape, device="meta")),
        "ShapeDtypeStruct": infos,
    }[made]
    lowered = capture(function).lower(*args, **kwargs)
    compiled = lowered.compile()
    for stage in (lowered, compiled):
        assert stage.in_tree == of_jax.in_tree
        assert stage.out_tree == of_jax.out_tree
        assert jax.tree.map(lambda i: (i.shape, i.dtype), stage.out_info) == jax.tree.map(
            lambda i: (i.shape, i.dtype), of_jax.out_info
        )
    args, kwargs = tensors
    expected = of_jax.compile()(*arguments(jnp.ones)[0], **arguments(jnp.ones)[1])
    result = compiled(*args, **dict(reversed(kwargs.items())))
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for ours, of_x in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(ours.cpu().numpy(), of_x)


def test_a_compiled_call_of_other_arguments(layer: nn.Module) -> None:
    compiled = jaxtorch.pure(lambda x, *, scale: layer(x) * scale).lower(
        jax.ShapeDtypeStruct((2, 8), "float32"), scale=2.0
    )
    call = compiled.compile()
    x = torch.randn(2, 8, device="jax")
    torch.testing.assert_close(call(x, scale=2.0), layer(x) * 2)
    call(x, scale=2.0).sum().backward()
    assert layer.weight.grad is not None
    for args, message in (
        ((x[:1],), r"float32\[2,8\] as `x`, not float32\[1,8\]"),
        ((x.int(),), r"float32\[2,8\] as `x`, not int32\[2,8\]"),
        ((x, x), "structure"),
    ):
        with pytest.raises(TypeError, match=message):
            call(*args, scale=2.0)
    with pytest.raises(TypeError, match="backward"):
        jaxtorch.pure(layer).lower(x, gradients=True).compile()(x)


def test_a_compiled_step_trains() -> None:
    w = torch.ones(3, device="jax", requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.5)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (w * x).sum()
        loss.backward()
        optimizer.step()
        return loss

    compiled = jaxtorch.jit(step).lower(jax.ShapeDtypeStruct((3,), "float32")).compile()
    assert w.sum() == 3  # nothing has run
    assert compiled(torch.ones(3, device="jax")) == 3
    assert w.sum() == 1.5


TARGETS_THAT_ARE_NONE = [
    ("v5e", "'v5e:1x1'"),
    ("v5:2x2", "'v5p'"),
    ("tpu7:2x2x1", "'tpu7x'"),
    ("v5e:3x3", "'v5e:4x4'"),
    ("v5e:1x3", "'v5e:1x4'"),
    ("v5e:0x2", "'v5e:1x2'"),
    ("v5e:2x2x1", "'v5e:2x2'"),
    ("v5p:2x2", "'v5p:2x2x1'"),
]


def test_a_target_that_is_none_and_a_compiler_that_is_missing(
    layer: nn.Module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    f, x = jaxtorch.pure(layer), torch.randn(2, 8, device="jax")
    for target, nearest in TARGETS_THAT_ARE_NONE:
        with pytest.raises(ValueError, match=nearest):
            f.lower(x, target=target)
    monkeypatch.setenv("JAXTORCH_LIBTPU", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    lowered = f.lower(x, target="v5e:1x1")
    shared.close()  # an earlier test may have started it
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


# -- the names of jax.stages ----------------------------------------------------------------------------------------


def by_pure(layer: nn.Module) -> tuple[object, tuple[torch.Tensor, ...]]:
    return jaxtorch.pure(lambda x: layer(x).relu()), (torch.ones(2, 8, device="jax"),)


def by_pure_of_a_module(layer: nn.Module) -> tuple[object, tuple[torch.Tensor, ...]]:
    return jaxtorch.pure(layer), (torch.ones(2, 8, device="jax"),)


def by_jit(layer: nn.Module) -> tuple[object, tuple[torch.Tensor, ...]]:
    return jaxtorch.jit(lambda x: layer(x).relu()), (torch.ones(2, 8, device="jax"),)


def by_jax(layer: nn.Module) -> tuple[object, tuple[jax.Array, ...]]:
    w, b = (jaxtorch.to_jax(p.detach()) for p in (layer.weight, layer.bias))
    return jax.jit(lambda x, w, b: jax.nn.relu(x @ w.T + b)), (jnp.ones((2, 8)), w, b)


@pytest.mark.parametrize("make", [by_jax, by_pure, by_pure_of_a_module, by_jit])
def test_what_jaxs_own_have(layer: nn.Module, make) -> None:  # type: ignore[no-untyped-def]
    f, args = make(layer)
    lowered = f.lower(*args)
    assert lowered.as_text().count("stablehlo.dot_general") == 1
    assert lowered.as_text(dialect="hlo").startswith("HloModule")
    assert "loc(" in lowered.as_text(debug_info=True)
    assert lowered.cost_analysis()["flops"] >= 2 * 2 * 8 * 4
    assert "dot_general" in str(lowered.compiler_ir("stablehlo"))
    assert sum(a.size for a in jax.tree.leaves(lowered.in_avals)) == 2 * 8 + 8 * 4 + 4
    compiled = lowered.compile()
    assert compiled.as_text().startswith("HloModule")
    assert compiled.cost_analysis()["flops"] >= 2 * 2 * 8 * 4
    assert compiled.memory_analysis().argument_size_in_bytes == 4 * (2 * 8 + 8 * 4 + 4)
    assert compiled.memory_analysis().temp_size_in_bytes >= 0
    assert compiled.runtime_executable().hlo_modules()
    for owner in (lowered, compiled, compiled.memory_analysis()):
        with pytest.raises(AttributeError):
            owner.nothing_of_this_name  # noqa: B018


OPTIMIZERS = [
    lambda p: torch.optim.SGD(p, lr=0.1),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: torch.optim.AdamW(p, lr=0.1),
]


@pytest.mark.parametrize("optimizer_of", OPTIMIZERS)
@pytest.mark.parametrize("when", [(), (0,), (1,), (0, 1, 2)])
def test_lowering_a_step_of_training_changes_nothing(optimizer_of, when) -> None:  # type: ignore[no-untyped-def]
    def train(steps_before_which_to_lower: tuple[int, ...]) -> tuple[torch.Tensor, list[float]]:
        torch.manual_seed(0)
        layer = nn.Linear(3, 2).to("jax")
        optimizer, losses = optimizer_of(layer.parameters()), []

        @jaxtorch.jit
        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = layer(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            return loss

        x = torch.randn(4, 3, device="jax")
        for i in range(3):
            if i in steps_before_which_to_lower:
                before = [p.detach().clone() for p in layer.parameters()]
                grads = [p.grad for p in layer.parameters()]
                lowered = step.lower(x)
                assert "jax.buffer_donor" in lowered.as_text() or "tf.aliasing" in lowered.as_text()
                assert lowered.compile().memory_analysis().alias_size_in_bytes > 0
                assert all(map(torch.equal, before, layer.parameters()))
                assert all(p.grad is g for p, g in zip(layer.parameters(), grads, strict=True))
                assert len(losses) == i
            step(x)
        return layer.weight.detach(), [loss.item() for loss in losses]

    expected, losses = train(())
    weight, own = train(when)
    assert torch.equal(weight, expected)
    assert own == losses
    assert len(own) == 3
