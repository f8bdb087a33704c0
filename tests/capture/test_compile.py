"""`torch.compile(backend="jax")`: torch's own eager CPU says what is right."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings

import jax
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jaxtorch


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(function, **options):
    return torch.compile(function, backend="jax", **options)


def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)), torch.randn(5, 6)


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


def same_state(model, expected):
    own = {name: t.cpu() for name, t in model.state_dict().items()}
    torch.testing.assert_close(own, dict(expected.state_dict()))


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


# -- memory -----------------------------------------------------------------------------------------------------


def test_cpu_tensors_are_borrowed_and_results_handed_back_without_a_copy():
    from jaxtorch.interop.borrow import borrowed, returned
    from jaxtorch.storage.buffer import buffer_of

    x = torch.randn(64, 32)
    for t in (x, x.T, x.view(8, 8, 32).permute(2, 0, 1)):
        lent = borrowed(t)
        assert buffer_of(lent).array.unsafe_buffer_pointer() == t.data_ptr()
        assert torch.equal(lent.cpu(), t)
    y = torch.randn(64, 32).to("jax")
    back = returned(y, torch.device("cpu"))
    assert back.data_ptr() == buffer_of(y).array.unsafe_buffer_pointer()
    assert torch.equal(back, y.cpu())


def test_what_came_back_from_the_device_is_lent_without_a_copy():
    from jaxtorch.interop.borrow import borrowed
    from jaxtorch.storage.buffer import buffer_of

    model = nn.Linear(33, 7).to("jax").cpu()
    for t in (*model.parameters(), torch.ones(5, 3, device="jax", dtype=torch.bfloat16).T.cpu()):
        assert buffer_of(borrowed(t)).array.unsafe_buffer_pointer() == t.data_ptr()


def test_a_compiled_call_neither_copies_its_inputs_nor_its_outputs(monkeypatch):
    from jaxtorch.capture import dynamo
    from jaxtorch.storage.buffer import buffer_of

    seen: dict[str, list[int]] = {"in": [], "out": []}
    run = dynamo.Pure.__call__

    def spy(self, *args):
        outputs, written = run(self, *args)
        seen["in"] = [buffer_of(a).array.unsafe_buffer_pointer() for a in args]
        seen["out"] = [buffer_of(a).array.unsafe_buffer_pointer() for a in outputs]
        return outputs, written

    monkeypatch.setattr(dynamo.Pure, "__call__", spy)
    model = nn.Linear(32, 32)
    x = torch.randn(16, 32)
    out = compiled(model)(x)
    given = {p.data_ptr() for p in (x, model.weight, model.bias)}
    assert set(seen["in"]) == given
    assert [out.data_ptr()] == seen["out"]


def test_a_result_is_never_its_inputs_memory():
    x = torch.randn(64)
    y = compiled(lambda x: x.clone())(x)
    y.zero_()
    assert x.abs().sum() > 0


def test_unaligned_and_strided_cpu_tensors():
    x = torch.randn(10, 12)
    f = compiled(lambda x: x * 2)
    for t in (x[1:, 1:], x[:, ::3], x.T, x[0].expand(4, 12), x[3, 3], x[:0]):
        torch.testing.assert_close(f(t), t * 2)


def test_a_write_to_a_cpu_parameter_is_seen_by_the_next_call():
    model = nn.Linear(256, 256)
    fast = compiled(model)
    x = torch.randn(64, 256)
    for _ in range(4):
        with torch.no_grad():
            out = fast(x)
            expected = model(x)
            model.weight.zero_()  # at once: the program must have read it
            torch.testing.assert_close(out, expected)
            model.reset_parameters()


def test_writing_to_what_a_backward_needs_is_torchs_error():
    w = torch.randn(4, requires_grad=True)
    out = compiled(lambda w: w.sin())(w)
    with torch.no_grad():
        w.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_writing_to_a_result_leaves_the_gradient_right():
    w = torch.randn(4, requires_grad=True)
    out = compiled(lambda w: w.exp())(w)
    expected = w.detach().exp()
    out.detach().zero_()
    out.sum().backward()
    torch.testing.assert_close(w.grad, expected)


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


@pytest.mark.parametrize("dynamic", [True, None])
def test_dynamic_sizes_compile_once_a_size(dynamic):
    model, _ = mlp()
    fast = compiled(model, dynamic=dynamic)
    sizes = [3, 4, 5, 6, 7]
    start = jaxtorch.compile_count()
    with torch.no_grad():
        for n in sizes * 3:
            x = torch.randn(n, 6)
            torch.testing.assert_close(fast(x), model(x))
    # With dynamic=None Dynamo makes a graph for the first size alone, and another for all of them.
    assert jaxtorch.compile_count() - start == len(sizes) + (dynamic is None)


def test_dynamic_sizes_are_one_graph():
    graphs = []
    from jaxtorch.capture.dynamo import backend

    def counting(graph, examples):
        graphs.append(backend(graph, examples, options={"max_entries": 2}))
        return graphs[-1]

    f = torch.compile(
        lambda x: x.reshape(-1).sum() * x.shape[0] + x[: x.shape[0] - 1].sum(0),
        backend=counting,
        dynamic=True,
    )
    before = jaxtorch.compile_count()
    for n in (3, 4, 5, 6):
        x = torch.randn(n, 5)
        torch.testing.assert_close(f(x), x.reshape(-1).sum() * n + x[: n - 1].sum(0))
    assert len(graphs) == 1
    assert jaxtorch.compile_count() - before == 4
    assert graphs[0].pure.cache_info().currsize == 2


def test_a_float_that_changes_is_an_operand():
    f = compiled(lambda x, s: x * s + 1)
    x = torch.randn(4)
    for s in (0.5, 1.5, 2.5):
        torch.testing.assert_close(f(x, s), x * s + 1)
    before = jaxtorch.compile_count()
    for s in (3.5, 4.5, 5.5):
        torch.testing.assert_close(f(x, s), x * s + 1)
    assert jaxtorch.compile_count() == before


def test_a_float_whose_value_the_code_needs():
    f = compiled(lambda x, eps: F.layer_norm(x, (4,), eps=eps))
    x = torch.randn(2, 4)
    for eps in (1e-5, 0.1, 1.0):
        torch.testing.assert_close(f(x, eps), F.layer_norm(x, (4,), eps=eps))


@pytest.mark.parametrize("device", ["jax", "cpu"])
def test_mutation_of_an_input(device):
    def f(x, y):
        x.add_(1)
        x[0] = y
        return x * 2

    expected, x = torch.zeros(2, 3), torch.zeros(2, 3).to(device)
    y = torch.randn(3)
    version = x._version
    out = compiled(f)(x, y.to(device))
    torch.testing.assert_close(out.cpu(), f(expected, y))
    torch.testing.assert_close(x.cpu(), expected)
    assert x._version > version


@pytest.mark.parametrize("device", ["jax", "cpu"])
def test_mutation_of_a_part_and_of_shared_memory(device):
    def f(x, y):
        x.mul_(2)
        return x + y

    values = []
    for function, place in ((f, "cpu"), (compiled(f), device)):
        whole = torch.arange(6.0).to(place)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = function(whole[1:4], whole[2:5])
        values.append((whole.cpu(), out.cpu()))
    torch.testing.assert_close(values[1], values[0])


@pytest.mark.parametrize("device", ["jax", "cpu"])
def test_mutation_that_a_gradient_flows_through_runs_eagerly_and_says_so(device):
    def f(x):
        x.mul_(3)
        return x.sin()

    gradients = []
    for function, place in ((f, "cpu"), (compiled(f), device)):
        w = torch.ones(3).to(place).requires_grad_()
        h = w * 2
        if function is f:
            out = function(h)
        else:
            with pytest.warns(UserWarning, match="runs eagerly"):
                out = function(h)
        (out.sum() + h.sum()).backward()
        gradients.append(w.grad.cpu())
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("device", ["jax", "cpu"])
def test_a_result_that_is_a_view_of_an_input_shares_its_memory(device):
    def f(x):
        return x.sin(), x.t()[1:]

    w = torch.randn(3, 4).to(device).requires_grad_()
    x = w * 1
    _, view = compiled(f)(x)
    assert view.shape == (3, 3)
    assert view._base is x
    with torch.no_grad():
        view.zero_()
    assert not x[:, 1:].abs().sum()
    (view.sum() * 2).backward()
    torch.testing.assert_close(w.grad.cpu()[:, 1:], torch.full((3, 3), 2.0))


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


@pytest.mark.parametrize("device", ["jax", "cpu"])
def test_factories_constants_and_devices_in_the_graph(device):
    table = torch.arange(3.0)

    def f(x):
        y = torch.zeros(3) + torch.tensor([1.0, 2.0, 3.0]) + torch.ones(3, device="cpu")
        z = x + torch.arange(3, device=x.device) + y.to(x.device) + table.to(x.device)
        return z, x.cpu() + table, y

    x = torch.randn(3)
    for mine, expected in zip(compiled(f)(x.to(device)), f(x), strict=True):
        torch.testing.assert_close(mine.cpu(), expected)
    z, w, y = compiled(f)(x.to(device))
    assert (z.device.type, w.device.type, y.device.type) == (device, "cpu", "cpu")


def test_tensors_of_both_devices():
    def f(x, w):
        return (x.to("jax") @ w).tanh().cpu()

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    a = x.detach().requires_grad_()
    b = w.detach().to("jax").requires_grad_()
    out = compiled(f)(a, b)
    expected = (x @ w).tanh()
    assert out.device.type == "cpu"
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(a.grad, x.grad)
    torch.testing.assert_close(b.grad.cpu(), w.grad)


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
        ({"mode": "fastest"}, "mode is one of"),
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
