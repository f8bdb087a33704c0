"""`torch.compile(backend="jax")`: memory that is lent, handed back, written to and shared, on both devices."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from .training import compiled

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


# -- lent and handed back ---------------------------------------------------------------


def test_cpu_tensors_are_borrowed_and_results_handed_back_without_a_copy():
    from jaxtorch.operators.borrow import borrowed, returned
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
    from jaxtorch.operators.borrow import borrowed
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


# -- written -------------------------------------------------------------------------------


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


# -- of two devices -----------------------------------------------------------------------


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
