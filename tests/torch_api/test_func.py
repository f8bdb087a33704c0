"""`torch.func` on the device, against the CPU; default devices."""

import pytest
import torch
from torch import func, nn


def both(function, *shapes):
    """The function's results on the CPU and on the device, for the same inputs."""
    torch.manual_seed(0)
    inputs = [torch.randn(*shape) for shape in shapes]
    expected = function(*inputs)
    result = function(*[x.jax() for x in inputs])
    flat, _ = torch.utils._pytree.tree_flatten(result)
    expected_flat, _ = torch.utils._pytree.tree_flatten(expected)
    for ours, theirs in zip(flat, expected_flat, strict=True):
        assert ours.is_jax
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-5, rtol=1e-4)


def curve(x):
    return (x.sin() * x).sum()


def layer(w, x):
    return torch.tanh(w @ x)


CASES = {
    "grad": (lambda x: func.grad(curve)(x), (3,)),
    "grad of grad": (lambda x: func.grad(lambda y: func.grad(curve)(y).sum())(x), (3,)),
    "grad_and_value": (lambda x: func.grad_and_value(curve)(x), (3,)),
    "vjp": (lambda w, x: func.vjp(layer, w, x)[1](torch.ones_like(w[:, 0])), (2, 3), (3,)),
    "jvp": (lambda x, t: func.jvp(torch.sin, (x,), (t,)), (3,), (3,)),
    # Views of a tensor that came from the CPU: its Storage knows its size, a result's does not.
    "jvp through views": (
        lambda x, t: func.jvp(lambda v: v.view(-1)[1:].sin() @ v.mT.reshape(-1)[1:], (x,), (t,)),
        (2, 3),
        (2, 3),
    ),
    "jacrev": (lambda w, x: func.jacrev(layer, argnums=(0, 1))(w, x), (2, 3), (3,)),
    "jacfwd": (lambda w, x: func.jacfwd(layer)(w, x), (2, 3), (3,)),
    "hessian": (lambda x: func.hessian(curve)(x), (3,)),
    "vmap": (lambda w, x: func.vmap(layer, in_dims=(None, 0))(w, x), (2, 3), (5, 3)),
    "vmap over the last dimension": (
        lambda w, x: func.vmap(layer, in_dims=(None, 1), out_dims=1)(w, x),
        (2, 3),
        (3, 5),
    ),
    "nested vmap": (
        lambda x, y: func.vmap(func.vmap(torch.dot, (None, 0)), (0, None))(x, y),
        (4, 3),
        (5, 3),
    ),
    "vmap with chunks": (lambda x: func.vmap(curve, chunk_size=2)(x), (5, 3)),
    "vmap of grad": (lambda x: func.vmap(func.grad(curve))(x), (5, 3)),
    "vmap with in-place": (lambda x: func.vmap(lambda v: v.clone().mul_(2).add_(v))(x), (5, 3)),
    "vmap over indexing": (lambda x: func.vmap(lambda v: v[1:].cumsum(0).max())(x), (5, 3)),
    "linearize": (lambda x, t: func.linearize(torch.sin, x)[1](t), (3,), (3,)),
    "functionalize": (lambda x: func.functionalize(lambda v: v.clone().add_(1))(x), (3,)),
    "per-sample gradients": (
        lambda w, x: func.vmap(func.grad(lambda w, x: layer(w, x).sum()), (None, 0))(w, x),
        (2, 3),
        (5, 3),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_transform(case):
    function, *shapes = case
    both(function, *shapes)


def test_functional_call_and_stacked_modules():
    models = [nn.Linear(3, 2).jax() for _ in range(4)]
    x = torch.randn(5, 3, device="jax")
    state = {k: v.detach() for k, v in models[1].state_dict().items()}
    out = func.functional_call(models[0], state, (x,))
    torch.testing.assert_close(out.cpu(), models[1](x).cpu())
    parameters, buffers = func.stack_module_state(models)
    outs = func.vmap(lambda p, b: func.functional_call(models[0], (p, b), (x,)))(
        parameters, buffers
    )
    torch.testing.assert_close(outs[2].cpu(), models[2](x).cpu(), atol=1e-5, rtol=1e-4)

    def loss(p):
        return func.functional_call(models[0], p, (x,)).square().sum()

    grads = func.grad(loss)(state)
    on_cpu, inputs = nn.Linear(3, 2), x.cpu()
    expected = func.grad(lambda p: func.functional_call(on_cpu, p, (inputs,)).square().sum())(
        {k: v.cpu() for k, v in state.items()}
    )
    for name, gradient in expected.items():
        torch.testing.assert_close(grads[name].cpu(), gradient)


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_vmap_randomness(randomness):
    x = torch.zeros(4, 3, device="jax")
    out = func.vmap(lambda v: v + torch.rand_like(v), randomness=randomness)(x)
    assert torch.equal(out[0], out[1]) == (randomness == "same")


class TestDefaultDevice:
    def test_set_default_device(self):
        torch.set_default_device("jax")
        try:
            assert torch.ones(2).is_jax
            assert torch.tensor([1, 2]).is_jax
            assert torch.arange(3).is_jax
            assert nn.Linear(2, 2).weight.is_jax
            assert torch.ones(2, device="cpu").device.type == "cpu"
            assert torch.tensor([1], device="cpu").device.type == "cpu"
            assert nn.Linear(2, 2, device="cpu").weight.device.type == "cpu"
            assert torch.ones(2, device="cpu").new_zeros(3).device.type == "cpu"
            assert torch.zeros_like(torch.ones(2, device="cpu")).device.type == "cpu"
            assert (torch.ones(2, device="cpu") + 1).device.type == "cpu"
            assert torch.as_tensor(torch.ones(2, device="cpu")).device.type == "jax"
            with torch.device("cpu"):
                assert torch.ones(2).device.type == "cpu"
            assert torch.get_default_device() == torch.device("jax", 0)
        finally:
            torch.set_default_device(None)
        assert torch.ones(2).device.type == "cpu"

    def test_with_block(self):
        with torch.device("jax"):
            assert torch.randn(2).is_jax
            assert torch.randperm(4).is_jax
            assert torch.linspace(0, 1, 3).is_jax
            assert torch.eye(2).is_jax
            assert torch.full((2,), 1.5).is_jax
            assert torch.randn(2, device="cpu").device.type == "cpu"
        assert torch.randn(2).device.type == "cpu"

    def test_a_training_step_under_it(self):
        with torch.device("jax"):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
            x, y = torch.randn(32, 4), torch.arange(32) % 3
            losses = []
            for _ in range(20):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        assert losses[-1] < losses[0]
