"""Autograd on the device does what it does on the CPU."""

import warnings

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

DEVICES = ["cpu", "jax"]


def leaf(*values, device="jax", dtype=torch.float32):
    return torch.tensor(values, device=device, dtype=dtype, requires_grad=True)


def on_both(function):
    """Run it with tensors of the CPU and of the device; both give the same."""
    results = []
    for device in DEVICES:
        result = function(device)
        results.append([r.detach().cpu() for r in result])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
    return results[1]


def test_hooks_and_retain_grad():
    def run(device):
        calls = []
        x = leaf(1.0, 2.0, 3.0, device=device)
        y = x * 2
        y.retain_grad()
        handle = y.register_hook(lambda g: g * 10)
        x.register_hook(lambda g: calls.append(g))
        x.register_post_accumulate_grad_hook(lambda p: calls.append(p.grad.clone()))
        (y**2).sum().backward(retain_graph=True)
        handle.remove()
        z = x * 3
        z.grad_fn.register_hook(lambda inputs, outputs: calls.append(outputs[0]))
        z.sum().backward()
        return [x.grad, y.grad, *calls]

    assert len(on_both(run)) == 7


def test_double_backward_and_create_graph():
    def run(device):
        x = leaf(0.5, 1.5, device=device)
        (first,) = torch.autograd.grad((x**3).sum() + x.prod().exp(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(second.sum(), x)
        return first, second, third

    on_both(run)


def test_no_grad_enable_grad_and_detach():
    x = leaf(1.0, 2.0)
    with torch.no_grad():
        assert not (x * 2).requires_grad
        with torch.enable_grad():
            assert (x * 2).requires_grad
        x.add_(1)
    assert x.tolist() == [2, 3]
    y = x.detach()
    assert not y.requires_grad
    y.zero_()
    assert x.tolist() == [0, 0]
    assert not x.data.requires_grad


def test_inference_mode():
    x = leaf(1.0, 2.0)
    with torch.inference_mode():
        y = x * 2
        assert y.is_inference()
        y.add_(1)
        z = y[0]
    assert y.tolist() == [3, 5]
    assert z.item() == 3
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        (x * y).sum().backward()
    assert (x.detach() * y.clone()).sum() == 13


def test_errors_are_torchs_own():
    x = leaf(1.0, 2.0)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        x.add_(1)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar"):
        (x * 2).backward()
    z = (x * 2).sum()
    z.backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(2, device="jax").sum().backward()
    w = (x.exp()).sum()
    w.backward()
    with pytest.raises(RuntimeError, match="second time"):
        w.backward()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint(use_reentrant):
    def run(device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
        for p in model.parameters():
            p.data = torch.linspace(-1, 1, p.numel(), device=device).reshape(p.shape)
        x = leaf([1.0, 2.0, 3.0], device=device)
        checkpoint(model, x, use_reentrant=use_reentrant).square().sum().backward()
        checkpoint_sequential(model, 2, x, use_reentrant=use_reentrant).sum().backward()
        return [x.grad, *[p.grad for p in model.parameters()]]

    on_both(run)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_repeats_the_dropout_mask(use_reentrant):
    x = torch.ones(200, device="jax", requires_grad=True)
    masks = []

    def function(v):
        out = nn.functional.dropout(v * 2, 0.5)
        masks.append(out.detach() != 0)
        return out * out

    checkpoint(function, x, use_reentrant=use_reentrant).sum().backward()
    assert torch.equal(x.grad != 0, masks[0])
    assert torch.equal(masks[0], masks[-1])


def test_anomaly_mode_names_the_forward():
    x = leaf(-1.0)
    with warnings.catch_warnings(record=True) as caught, torch.autograd.detect_anomaly():
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError, match=r"SqrtBackward0.*nan"):
            (x.sqrt() * 1).backward()
    assert any("x.sqrt()" in str(w.message) for w in caught)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x**3 * factor

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, False)
        return 3 * x**2 * grad * ctx.factor, None


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_custom_functions():
    def run(device):
        x = leaf(1.0, 2.0, device=device)
        y = Cube.apply(x, 2.0)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        z = InPlace.apply(x * 1)
        z.sum().backward()
        return y, first, second, z, x.grad

    on_both(run)


def test_gradients_through_views_and_in_place_writes():
    def run(device):
        x = leaf([1.0, 2.0], [3.0, 4.0], device=device)
        y = x * 1
        y[0].mul_(3)
        y.t()[1, 1] = x[0, 0]
        y[:, 0] += y[:, 1]
        z = torch.zeros(3, 2, device=device)
        z[1:] = y
        (z**2).sum().backward()
        return x.grad, z

    on_both(run)


def test_gradcheck():
    def double(*shape):
        return torch.randn(*shape, dtype=torch.float64, device="jax", requires_grad=True)

    assert gradcheck(lambda a, b: (a @ b).tanh(), (double(2, 3), double(3, 2)))
    assert gradgradcheck(lambda a: (a.exp() * a).sum(0), (double(2, 2),))
    assert gradcheck(Cube.apply, (double(3), 2.0))
    assert gradcheck(
        lambda a: a.to(torch.complex128).abs().sum(), (double(2),), check_forward_ad=True
    )


def test_forward_mode():
    import torch.autograd.forward_ad as forward

    def run(device):
        x = torch.tensor([1.0, 2.0], device=device)
        with forward.dual_level():
            dual = forward.make_dual(x, torch.ones(2, device=device))
            return list(forward.unpack_dual(dual.sin() * dual))

    on_both(run)


def test_saved_tensor_hooks():
    stored = []

    def pack(tensor):
        stored.append(tensor.device.type)
        return tensor.cpu()

    x = leaf(1.0, 2.0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda host: host.jax()):
        y = (x.exp() * x).sum()
    y.backward()
    assert set(stored) == {"jax"}
    torch.testing.assert_close(
        x.grad.cpu(), torch.tensor([1.0, 2.0]).exp() * torch.tensor([2.0, 3.0])
    )
    with torch.autograd.graph.save_on_cpu():
        y = (x.exp() * x).sum()
    y.backward()


def test_gradients_across_devices():
    x = torch.ones(3, requires_grad=True)
    y = (x.jax() * 2).cpu() * 3
    y.sum().backward()
    assert x.grad.tolist() == [6, 6, 6]
    assert x.grad.device.type == "cpu"


def test_backward_with_gradient_argument_and_accumulation():
    x = leaf(1.0, 2.0)
    for _ in range(2):
        (x * 3).backward(torch.tensor([1.0, 10.0], device="jax"))
    assert x.grad.tolist() == [6, 60]
    x.grad.zero_()
    with pytest.raises(RuntimeError):
        (x * 3).backward(torch.ones(3, device="jax"))
    with pytest.raises(RuntimeError, match="device"):
        (x * 3).backward(torch.ones(2))


def test_module_hooks_and_grad_clipping():
    model = nn.Linear(2, 2).jax()
    seen = []
    model.register_forward_pre_hook(lambda m, args: seen.append("pre"))
    model.register_forward_hook(lambda m, args, out: seen.append("forward"))
    model.register_full_backward_hook(lambda m, gi, go: seen.append("backward"))
    x = torch.ones(1, 2, device="jax", requires_grad=True)
    (model(x) * 100).sum().backward()
    assert seen == ["pre", "forward", "backward"]
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert norm > 1
    total = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    assert abs(total.item() - 1) < 1e-4
    nn.utils.clip_grad_value_(model.parameters(), 0.1)
