"""`torch.compile(backend="jax")`: torch's own eager CPU says what is right.

Whose memory its tensors have is in `test_compile_memory.py`; sizes and numbers that change: `test_compile_dynamic.py`.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jaxtorch

from .training import compiled, mlp, same_state

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def cnn():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 3),
    )
    return model, torch.randn(5, 3, 8, 8)


def encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(16, 3)), torch.randn(5, 7, 16)


MODELS = [mlp, cnn, encoder]


def train(model, step, x, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    target = torch.zeros((), device=x.device)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (step(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu())
    return torch.stack(losses)


# -- found by torch ---------------------------------------------------------------------------------------------


def test_torch_finds_the_backend_without_an_import_of_ours():
    code = """
import sys, torch
assert "jax" in torch.compiler.list_backends()
assert "jax" not in sys.modules
print(torch.compile(lambda x: x + 1, backend="jax")(torch.zeros(2)).tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[1.0, 1.0]", done.stderr


# -- models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["jax", "cpu"])
@pytest.mark.parametrize("make", MODELS)
def test_inference(make, device):
    model, x = make()
    model.eval()
    fast = compiled(copy.deepcopy(model).to(device), fullgraph=True)
    with torch.no_grad():
        out = fast(x.to(device))
        torch.testing.assert_close(out.cpu(), model(x))
        assert out.device.type == device
        assert not out.requires_grad


@pytest.mark.parametrize("device", ["jax", "cpu"])
@pytest.mark.parametrize("make", MODELS)
def test_three_steps_of_training(make, device):
    expected, x = make()
    model = copy.deepcopy(expected).to(device)
    fast = compiled(model, fullgraph=True)
    losses = train(model, fast, x.to(device))
    torch.testing.assert_close(losses, train(expected, expected, x))
    same_state(model, expected)
    assert next(model.parameters()).device.type == device


def test_training_compiles_once():
    model, x = mlp()
    fast = compiled(model)
    train(model, fast, x, steps=1)
    before = jaxtorch.compile_count()
    train(model, fast, x, steps=3)
    assert jaxtorch.compile_count() == before


@pytest.mark.parametrize("device", ["jax", "cpu"])
def test_gradients_of_inputs_and_second_derivatives(device):
    def f(x, w):
        return (x.sin() @ w).exp().sum()

    x, w = torch.randn(3, 4), torch.randn(4, 2)
    gradients = []
    for function, place in ((f, "cpu"), (compiled(f), device)):
        a, b = (t.detach().to(place).requires_grad_() for t in (x, w))
        first = torch.autograd.grad(function(a, b), (a, b), create_graph=True)
        second = torch.autograd.grad(first[0].square().sum() + first[1].sum(), (a, b))
        gradients.append([g.cpu() for g in (*first, *second)])
    torch.testing.assert_close(gradients[1], gradients[0])


# -- what Dynamo does -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["jax", "cpu"])
def test_a_graph_break(device):
    seen = []

    def f(x, w):
        y = (x * w).tanh()
        seen.append(y.detach().sum().item())  # the value: dynamo ends a graph here
        if seen[-1] > 1e9:
            return y
        return (y @ w.T).sum()

    x, w = torch.randn(3, 4), torch.randn(3, 4, requires_grad=True)
    own = w.detach().to(device).requires_grad_()
    out = compiled(f)(x.to(device), own)
    expected = f(x, w)
    out.backward()
    expected.backward()
    torch.testing.assert_close(out.cpu(), expected)
    torch.testing.assert_close(own.grad.cpu(), w.grad)
    assert seen[0] == pytest.approx(seen[1])


@pytest.mark.parametrize("device", ["jax", "cpu"])
def test_batch_norm_statistics(device):
    expected = nn.BatchNorm1d(4)
    model = copy.deepcopy(expected).to(device)
    fast = compiled(model)
    x = torch.randn(8, 4)
    for _ in range(3):
        out = fast(x.to(device))
        torch.testing.assert_close(out.cpu(), expected(x))
    same_state(model, expected)
    assert int(model.num_batches_tracked) == 3
    model.eval()
    expected.eval()
    torch.testing.assert_close(fast(x.to(device)).cpu(), expected(x))


@pytest.mark.parametrize("device", ["jax", "cpu"])
def test_hooks(device):
    def run(model, fast, x):
        x = x.requires_grad_()
        h = x * 2
        h.register_hook(lambda g: g * 10)
        out = fast(h)
        out.register_hook(lambda g: g + 1)
        out.sum().backward()
        return [x.grad.cpu(), *(p.grad.cpu() for p in model.parameters())]

    expected, x = mlp()
    expected[0].register_forward_hook(lambda m, args, out: out * 2)
    expected[0].weight.register_hook(lambda g: g * 3)
    model = copy.deepcopy(expected).to(device)
    model[0].weight.register_hook(lambda g: g * 3)  # hooks of tensors are not copied
    mine = run(model, compiled(model), x.clone().to(device))
    torch.testing.assert_close(mine, run(expected, expected, x.clone()))


def test_autocast_around_and_inside():
    x, w = torch.randn(8, 8), torch.randn(8, 8)

    def inside(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return x @ w

    out = compiled(inside)(x, w)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, inside(x, w))
    with torch.autocast("cpu", torch.bfloat16):
        out = compiled(torch.mm)(x, w)
    assert out.dtype == torch.bfloat16


def test_an_optimizers_step():
    values = []
    for device in ("cpu", "jax", "cpu"):
        w = torch.linspace(0, 1, 4).to(device).requires_grad_()
        optimizer = torch.optim.AdamW([w], lr=0.1, capturable=False)
        step = optimizer.step if not values else compiled(optimizer.step)
        for _ in range(3):
            optimizer.zero_grad()
            w.square().sum().backward()
            step()
        values.append(w.detach().cpu())
    torch.testing.assert_close(values[1], values[0])
    torch.testing.assert_close(values[2], values[0])


@pytest.mark.parametrize("device", ["jax", "cpu"])
def test_a_list_that_is_written(device):
    """`_foreach_add_` returns the tensors that it wrote."""
    tensors = [torch.ones(3, device=device), torch.ones(2, device=device)]
    results = torch.compile(lambda ts: torch._foreach_add_(ts, 1.0), backend="jax")(tensors)
    assert [r is t for r, t in zip(results, tensors, strict=True)] == [True, True]
    rows = torch.compile(lambda ts: [t[:1] for t in torch._foreach_mul_(ts, 2.0)], backend="jax")
    for row in rows(tensors):
        row.zero_()
    assert [t.tolist() for t in tensors] == [[0, 4, 4], [0, 4]]


def test_dropout_is_fresh_and_reproducible():
    f = compiled(lambda x: F.dropout(x, 0.5, training=True))
    x = torch.ones(256)
    torch.manual_seed(3)
    a, b = f(x), f(x)
    torch.manual_seed(3)
    assert not torch.equal(a, b)
    assert torch.equal(f(x), a)
    assert set(a.unique().tolist()) == {0.0, 2.0}


def test_inside_captured_code():
    model, x = mlp()
    fast = compiled(copy.deepcopy(model).to("jax"))
    whole = jaxtorch.pure(lambda x: fast(x) * 2)
    with torch.no_grad():
        fast(x.to("jax"))
        before = jaxtorch.compile_count()
        torch.testing.assert_close(whole(x.to("jax")).cpu(), model(x) * 2)
    assert jaxtorch.compile_count() - before == 1


def test_a_module_made_in_the_graph_after_pure_was_used():
    jaxtorch.pure(nn.Linear(2, 2).to("jax"))(torch.ones(2, device="jax"))
    layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def f(x):
        for layer in layers[:2]:  # a new ModuleList
            x = layer(x)
        return x

    x = torch.randn(2, 3)
    torch.testing.assert_close(compiled(f, fullgraph=True)(x), f(x))


@torch.library.custom_op("jaxtorch_test::clipped", mutates_args=())
def _clipped(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(max=x.flatten()[0].item())  # the value: no program can have it


@_clipped.register_fake
def _(x):
    return torch.empty_like(x)


@pytest.mark.parametrize("device", ["jax", "cpu"])
def test_a_graph_that_cannot_be_a_program_runs_eagerly_and_says_so(device):
    f = compiled(lambda x: torch.ops.jaxtorch_test.clipped(x * 2) + 1)
    x = torch.tensor([1.0, 5.0, 0.5]).to(device)
    with pytest.warns(UserWarning, match="runs eagerly"):
        out = f(x)
    assert out.tolist() == [3, 3, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert f(x + 1).tolist() == [5, 5, 4]


# -- words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_modes_are_accepted(mode):
    assert compiled(lambda x: x + 1, mode=mode)(torch.zeros(2)).tolist() == [1, 1]


def test_options_are_those_of_the_config():
    x = torch.randn(4, 4)
    f = compiled(torch.mm, options={"matmul_precision": "highest", "max_entries": 3})
    torch.testing.assert_close(f(x, x), x @ x)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "fastest"}, "mode must be one of"),
        ({"options": {"precision": "high"}}, "matmul_precision"),
    ],
)
def test_unknown_words_are_named(options, words):
    with pytest.raises(Exception, match=words):
        compiled(lambda x: x + 1, **options)(torch.zeros(2))


def test_jax_is_not_asked_to_forget_its_configuration():
    before = jax.config.jax_enable_x64
    compiled(lambda x: x + 1)(torch.zeros(2, dtype=torch.float64))
    assert jax.config.jax_enable_x64 == before


PLAIN: dict[str, Callable[[], object]] = {
    "a module": lambda: nn.Linear(4, 3).jax(),
    "a function": lambda: torch.sin,
    "a tensor made in the code": lambda: lambda x: x.new_ones(2) + torch.ones(2, device="jax"),
}


@pytest.mark.parametrize("options", [{}, {"backend": "inductor"}, {"mode": "reduce-overhead"}])
@pytest.mark.parametrize("made", PLAIN.values(), ids=PLAIN)
def test_the_default_backend_says_which_to_name(
    made: Callable[[], Any], options: dict[str, Any]
) -> None:
    torch._dynamo.reset()
    f = torch.compile(made(), **options)
    with pytest.raises(RuntimeError, match=r'use torch\.compile\(f, backend="jax"\)'):
        f(torch.ones(4, device="jax"))


def test_a_step_within_one_graph_says_what_to_write() -> None:
    x = torch.ones(3, device="jax")
    step = jaxtorch.jit(lambda x: x * 2)
    with pytest.raises(Exception, match=r"use jaxtorch\.pure\(f\) within torch\.compile"):
        torch.compile(lambda x: step(x) + 1, backend="jax", fullgraph=True)(x)
    torch._dynamo.reset()
    part = torch.compile(lambda x: step(x) + 1, backend="jax")
    assert torch.equal(part(x).cpu(), torch.full((3,), 3.0))
    inner = torch.compile(lambda x: x * 2, backend="jax", fullgraph=True)
    inner(x)
    assert torch.equal(jaxtorch.jit(lambda x: inner(x) + 1)(x).cpu(), torch.full((3,), 3.0))


FIRST = """
import sys, torch, jaxtorch
scale = 2.0
def f(x): return x * scale
captured = jaxtorch.pure(lambda x: torch.compile(f, backend="eager")(x))
x = torch.ones(2, device="jax")
assert "torch._dynamo" not in sys.modules
found = [captured(x).tolist()]
scale = 3.0
found.append(captured(x).tolist())
print(found, sum(torch._dynamo.utils.counters["frames"].values()))
"""


def test_captured_code_that_imports_dynamo_runs_compiled_functions_as_python() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIRST], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "[[2.0, 2.0], [3.0, 3.0]] 0", done.stderr


def test_options_of_a_compiled_function_have_no_effect_in_captured_code() -> None:
    f = torch.compile(lambda x: x * 2, backend="jax", options={"matmul_precision": "highest"})
    with pytest.warns(UserWarning, match=r"compiled with options=.*jaxtorch\.config"):
        jaxtorch.pure(lambda x: f(x))(torch.ones(2, device="jax"))
