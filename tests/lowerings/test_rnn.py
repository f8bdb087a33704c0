"""Recurrent networks as one program a call, against the CPU: results, gradients, and how much is compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils._pytree import tree_leaves, tree_map

import jaxtorch
from jaxtorch.programs import stats

KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="tanh", **kwargs),
    "relu": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="relu", **kwargs),
    "projected": lambda *args, **kwargs: nn.LSTM(*args, proj_size=3, **kwargs),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "deep, bidirectional, batch first": {
        "num_layers": 2,
        "bidirectional": True,
        "batch_first": True,
    },
    "without biases": {"bias": False, "num_layers": 2},
}
FEATURES, HIDDEN, BATCH, STEPS = 4, 5, 3, 6


def network(kind: str, dtype: torch.dtype = torch.float64, **options: Any) -> nn.RNNBase:
    torch.manual_seed(0)
    return KINDS[kind](FEATURES, HIDDEN, **options).to(dtype)


def states(module: nn.RNNBase, batch: int = BATCH) -> Any:
    """First states that are not zero."""
    count = module.num_layers * (1 + module.bidirectional)
    dtype = module.weight_ih_l0.dtype
    h = torch.randn(count, batch, module.proj_size or HIDDEN, dtype=dtype, requires_grad=True)
    if not isinstance(module, nn.LSTM):
        return h
    return h, torch.randn(count, batch, HIDDEN, dtype=dtype, requires_grad=True)


def sequence(module: nn.RNNBase) -> torch.Tensor:
    shape = (BATCH, STEPS) if module.batch_first else (STEPS, BATCH)
    return torch.randn(*shape, FEATURES, dtype=module.weight_ih_l0.dtype, requires_grad=True)


def packed(module: nn.RNNBase, lengths: tuple[int, ...] = (2, 6, 4)) -> PackedSequence:
    dtype = module.weight_ih_l0.dtype
    parts = [torch.randn(n, FEATURES, dtype=dtype) for n in lengths]
    found = pack_sequence(parts, enforce_sorted=False)
    return found._replace(data=found.data.requires_grad_())


def moved(tree: Any, device: str) -> Any:
    """The same inputs on a device, leaves that ask for gradients where the originals do."""

    def move(x: Any) -> Any:
        if isinstance(x, PackedSequence):
            return x.to(device)._replace(data=move(x.data))
        return x.detach().clone().to(device).requires_grad_(x.requires_grad)

    return tree_map(move, tree, is_leaf=lambda x: isinstance(x, PackedSequence))


def run(module: nn.RNNBase, given: Any, order: int = 1) -> list[torch.Tensor]:
    """Results, gradients, and with `order` 2 the gradients of a function of the gradients."""
    results = [t for t in tree_leaves(module(*given)) if t.is_floating_point()]
    leaves = [t for t in tree_leaves(given) if t.requires_grad]
    leaves += [p for p in module.parameters() if p.requires_grad]
    loss = sum(((r * 1.3).sin() * (i + 1)).sum() for i, r in enumerate(results))
    grads = list(torch.autograd.grad(loss, leaves, create_graph=order > 1))
    if order == 1:
        return [*results, *grads]
    again = torch.autograd.grad(sum(g.square().sum() for g in grads), leaves)
    return [*grads, *again]


def check(module: nn.RNNBase, given: Any, order: int = 1) -> None:
    before = len(stats.compiled)
    actual = run(copy.deepcopy(module).to("jax"), moved(given, "jax"), order)
    for name in (c.name for c in stats.compiled[before:]):
        assert "thnn" not in name, "a cell ran by itself"
    expected = run(module, given, order)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if module.weight_ih_l0.dtype.itemsize == 4 else {}
    for a, e in zip(actual, expected, strict=True):
        assert a.device.type == "jax"
        torch.testing.assert_close(a.cpu(), e, **tolerance)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_sequences(kind: str, options: dict[str, Any]) -> None:
    module = network(kind, **options)
    check(module, (sequence(module), states(module)))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences(kind: str, options: dict[str, Any]) -> None:
    module = network(kind, **options)
    check(module, (packed(module), states(module)))


@pytest.mark.parametrize("make", [sequence, packed])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_float32_and_states_of_zero(kind: str, make: Callable[[nn.RNNBase], Any]) -> None:
    module = network(kind, torch.float32, num_layers=2, bidirectional=True)
    check(module, (make(module),))


@pytest.mark.parametrize("make", [sequence, packed])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_gradients(kind: str, make: Callable[[nn.RNNBase], Any]) -> None:
    module = network(kind)
    check(module, (make(module), states(module)), order=2)


@pytest.mark.parametrize("steps", [1, STEPS])
def test_a_sequence_without_a_batch(steps: int) -> None:
    module = network("lstm")
    x = torch.randn(steps, FEATURES, dtype=torch.float64, requires_grad=True)
    check(module, (x,))


@pytest.mark.parametrize("frozen", ["weight_hh_l0", "everything"])
def test_parameters_that_ask_for_no_gradient(frozen: str) -> None:
    module = network("gru", num_layers=2)
    for name, p in module.named_parameters():
        p.requires_grad_(name != frozen and frozen != "everything")
    check(module, (sequence(module),))


def test_strides_are_the_cpus() -> None:
    module = network("lstm", batch_first=True)
    out, _ = copy.deepcopy(module).to("jax")(sequence(module).to("jax"))
    assert out.stride() == module(sequence(module))[0].stride()


# -- dropout ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [sequence, packed])
@pytest.mark.parametrize("kind", ["lstm", "tanh"])
@pytest.mark.sampled(4)
def test_dropout_of_nothing_and_of_everything(kind: str, make: Callable[[nn.RNNBase], Any]) -> None:
    module = network(kind, num_layers=2, bidirectional=True, dropout=1.0)
    check(module, (make(module), states(module)))
    check(module.eval(), (make(module), states(module)))


def test_dropout_draws_from_the_device() -> None:
    module = network("lstm", num_layers=2, dropout=0.5).to("jax")
    x = sequence(module).detach().to("jax")
    torch.manual_seed(1)
    first, second = module(x)[0], module(x)[0]
    torch.manual_seed(1)
    again = module(x)[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_dropout_has_the_gradient_of_what_it_drew() -> None:
    module = network("gru", num_layers=2, dropout=0.5).to("jax")
    x = sequence(module).detach().to("jax").requires_grad_()

    def drawn(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(2)
        return module(x)[0]

    assert torch.autograd.gradcheck(drawn, (x,), fast_mode=True)


# -- whatever wants to see the parts ---------------------------------------------------------------------------


def test_transforms() -> None:
    module = network("lstm")
    x = sequence(module).detach()

    def loss(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: module(x)[0].square().sum()

    many = torch.stack([x, x + 1])
    # (torch's own LSTM for float64 on the CPU has no batching rule.)
    expected = torch.stack([torch.func.grad(loss(module))(x) for x in many])
    actual = torch.func.vmap(torch.func.grad(loss(module.to("jax"))))(many.to("jax"))
    torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("make", [sequence, packed])
def test_batched_gradients(make: Callable[[nn.RNNBase], Any]) -> None:
    module = network("gru")
    given = make(module)
    cotangents: list[torch.Tensor] = []
    results = []
    for device in ("cpu", "jax"):
        local = copy.deepcopy(module).to(device)
        x = moved(given, device)
        out = local(x)[0]
        out, leaf = (out.data, x.data) if isinstance(x, PackedSequence) else (out, x)
        cotangents = cotangents or [torch.randn(4, *out.shape, dtype=out.dtype)]
        leaves = [leaf, *local.parameters()]
        grads = torch.autograd.grad(out, leaves, cotangents[0].to(device), is_grads_batched=True)
        results.append([g.cpu() for g in grads])
    torch.testing.assert_close(results[1], results[0])


def test_forward_mode() -> None:
    # torch's CPU has no forward mode for its networks; differences of the function say what is right.
    module = network("gru").to("jax")
    x = sequence(module).detach().to("jax")
    tangent = torch.randn(x.shape, dtype=x.dtype).to("jax")
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        actual = torch.autograd.forward_ad.unpack_dual(module(dual)[0]).tangent
    step = 1e-6
    expected = (module(x + step * tangent)[0] - module(x - step * tangent)[0]) / (2 * step)
    assert actual is not None
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


# -- autocast and half types --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [sequence, packed])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(4)
def test_autocast(kind: str, make: Callable[[nn.RNNBase], Any]) -> None:
    """As on cuda: input, states and weights are cast; gradients arrive in the weights' dtype."""
    module = network(kind, torch.float32).to("jax")
    given = moved(make(module.cpu()), "jax")
    module.to("jax")
    with torch.autocast("jax", torch.bfloat16):
        results = [t for t in tree_leaves(module(given)) if t.is_floating_point()]
    assert {r.dtype for r in results} == {torch.bfloat16}
    sum(r.float().sum() for r in results).backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in module.parameters())
    full = [t for t in tree_leaves(module(given)) if t.is_floating_point()]
    for half, r in zip(results, full, strict=True):
        torch.testing.assert_close(half.float(), r, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_types(kind: str, dtype: torch.dtype) -> None:
    """No less exact than the CPU, by the distance of both from float64."""
    module = network(kind, dtype, num_layers=2)
    x = sequence(module).detach()
    exact = copy.deepcopy(module).double()(x.double())[0]
    cpu = (module(x)[0].double() - exact).abs().max()
    ours = (copy.deepcopy(module).to("jax")(x.to("jax"))[0].cpu().double() - exact).abs().max()
    assert ours <= cpu + torch.finfo(dtype).eps


# -- programs -----------------------------------------------------------------------------------------------------


def recurrent_programs(step: Callable[[], object]) -> list[str]:
    before = len(stats.compiled)
    step()
    names = [c.name for c in stats.compiled[before:]]
    return [n for n in names if n.split(".")[0] in ("lstm", "gru", "rnn_tanh", "rnn_relu")]


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_one_program_forward_and_one_backward(kind: str) -> None:
    # A width that no other test has: programs are kept.
    module = KINDS[kind](FEATURES, 9, num_layers=2).to("jax")

    def step(steps: int) -> Callable[[], None]:
        x = torch.randn(steps, 2, FEATURES, device="jax", requires_grad=True)
        return lambda: module(x)[0].sum().backward()

    assert recurrent_programs(step(5)) == [f"{kind}.input", f"{kind}.input_backward"]
    assert len(recurrent_programs(step(7))) == 2
    step(5)()  # gradients are added from here on
    before = jaxtorch.compile_count()
    for steps in (5, 7):
        step(steps)()
    assert jaxtorch.compile_count() == before


def test_training_and_evaluation_share_a_program() -> None:
    module = nn.LSTM(FEATURES, 10, device="jax")
    x = torch.randn(5, 2, FEATURES, device="jax")
    assert len(recurrent_programs(lambda: module(x))) == 1
    with torch.no_grad():
        assert recurrent_programs(lambda: module.eval()(x)) == []


def test_few_programs_for_many_packed_batches() -> None:
    module = nn.GRU(FEATURES, 11, device="jax")
    torch.manual_seed(0)

    def step() -> None:
        lengths = [40, *torch.randint(20, 41, (3,), device="cpu").tolist()]
        parts = [torch.randn(n, FEATURES) for n in lengths]
        module(pack_sequence(parts, enforce_sorted=False).to("jax"))[0].data.sum().backward()

    # 12 counts of rows between 100 and 160: four numbers of rounded rows, forward and backward.
    assert len(recurrent_programs(lambda: [step() for _ in range(12)])) <= 2 * 4


def test_what_is_wrong_is_said_in_torchs_words() -> None:
    module = network("lstm").to("jax")
    x = torch.randn(STEPS, BATCH, FEATURES, dtype=torch.float64, device="jax")
    h = torch.zeros(1, 1, HIDDEN, dtype=torch.float64, device="jax")
    weights = module._flat_weights
    with pytest.raises(RuntimeError) as expected:
        torch.lstm(x.cpu(), [h.cpu()], [w.cpu() for w in weights], True, 1, 0, True, False, False)
    with pytest.raises(RuntimeError) as actual:
        torch.lstm(x, [h], weights, True, 1, 0, True, False, False)
    assert str(actual.value) == str(expected.value)
    with pytest.raises(RuntimeError):
        torch.lstm(x, [h.float(), h.float()], weights, True, 1, 0, True, False, False)
