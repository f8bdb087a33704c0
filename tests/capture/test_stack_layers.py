"""`stack_layers` against the loop over separate layers."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from torch import nn

import jaxtorch
from jaxtorch.capture.errors import CaptureError

Tensor = torch.Tensor


class Block(nn.Module):
    """A layer with a residual, a scale of the caller's, dropout and a buffer."""

    def __init__(self, width: int = 4, dropout: float = 0.0):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("shift", torch.randn(width))

    def forward(self, x: Tensor, scale: float | Tensor = 1.0) -> Tensor:
        return x + self.dropout(self.linear(self.norm(x)) * scale + self.shift)


class Model(nn.Module):
    def __init__(self, depth: int = 3, dropout: float = 0.0):
        super().__init__()
        self.layers: nn.Module = nn.ModuleList(Block(dropout=dropout) for _ in range(depth))

    def forward(self, x: Tensor, scale: float | Tensor = 1.0) -> Tensor:
        for layer in self.layers:  # type: ignore[attr-defined]
            x = layer(x, scale=scale)
        return x


def both(depth: int = 3) -> tuple[Model, Model]:
    """A model, and the same with its layers stacked."""
    torch.manual_seed(0)
    model = Model(depth).to("jax")
    other = copy.deepcopy(model)
    other.layers = jaxtorch.stack_layers(other.layers)
    return model, other


@pytest.mark.parametrize("remat", [False, True, "dots_saveable"])
@pytest.mark.parametrize("captured", [False, True])
def test_values_and_gradients(remat: bool | str, captured: bool) -> None:
    model, _ = both()
    other = copy.deepcopy(model)
    other.layers = jaxtorch.stack_layers(other.layers, remat=remat)
    x = torch.randn(2, 4, device="jax", requires_grad=True)
    y = x.detach().clone().requires_grad_()
    expected = model(x, scale=torch.tensor(0.5, device="jax"))
    call = jaxtorch.pure(other) if captured else other
    result = call(y, scale=torch.tensor(0.5, device="jax"))
    torch.testing.assert_close(result, expected)
    expected.square().sum().backward()
    result.square().sum().backward()
    torch.testing.assert_close(y.grad, x.grad)
    for name in ("norm.weight", "linear.weight", "linear.bias"):
        stacked = other.layers.layer.get_parameter(name).grad
        each = [layer.get_parameter(name).grad for layer in model.layers]
        torch.testing.assert_close(stacked, torch.stack(each))


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adam, torch.optim.RMSprop])
def test_steps_of_an_optimizer(make: type[torch.optim.Optimizer]) -> None:
    def trained(model: Model) -> tuple[list[Tensor], dict[str, Tensor]]:
        optimizer = make(model.parameters(), lr=0.05)

        @jaxtorch.jit
        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            return loss

        torch.manual_seed(1)
        losses = [step(torch.randn(2, 4, device="jax")) for _ in range(3)]
        return losses, model.state_dict()

    model, other = both()
    torch.testing.assert_close(trained(other), trained(model))


@pytest.mark.parametrize("device", ["cpu", "jax", "meta"])
def test_a_state_dict_has_separate_layers(device: str) -> None:
    model = Model().to(device)
    before = model.state_dict()
    other = Model().to(device)
    other.layers = jaxtorch.stack_layers(other.layers)
    state = other.state_dict()
    assert list(state) == list(before)
    assert {k: v.shape for k, v in state.items()} == {k: v.shape for k, v in before.items()}
    if device == "meta":
        return
    other.load_state_dict(before)
    torch.testing.assert_close(other.state_dict(), before)
    del before["layers.1.linear.bias"]
    with pytest.raises(RuntimeError, match=r"layers\.layer\.linear\.bias"):
        other.load_state_dict(before)


def test_dropout_differs_between_layers() -> None:
    layers = nn.ModuleList(Block(64, dropout=0.5) for _ in range(2)).to("jax")
    for layer in layers:
        nn.init.zeros_(layer.linear.weight)
        nn.init.ones_(layer.linear.bias)
        layer.shift.zero_()
    stack = jaxtorch.stack_layers(layers)
    sums = stack(torch.zeros(64, 64, device="jax"))
    assert set(sums.unique().tolist()) == {
        0.0,
        2.0,
        4.0,
    }  # one mask for both layers would leave out 2
    stack.eval()
    assert set(stack(torch.zeros(4, 64, device="jax")).unique().tolist()) == {2.0}


@pytest.mark.slow
def test_llama_of_transformers() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=3, num_attention_heads=2)
    model = transformers.LlamaForCausalLM(config).to("jax")
    other = copy.deepcopy(model)
    other.model.layers = jaxtorch.stack_layers(other.model.layers, remat=True, ignore=["layer_idx"])
    ids = torch.randint(0, 64, (2, 8), device="jax")
    losses = [m(input_ids=ids, labels=ids, use_cache=False).loss for m in (model, other)]
    torch.testing.assert_close(losses[1], losses[0])
    for loss in losses:
        loss.backward()
    each = [layer.self_attn.q_proj.weight.grad for layer in model.model.layers]
    stacked = other.model.layers.layer.self_attn.q_proj.weight.grad
    torch.testing.assert_close(stacked, torch.stack(each))
    assert list(other.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("depth", [2, 12])
def test_the_program_does_not_grow_with_depth(depth: int) -> None:
    def lines(depth: int) -> int:
        with torch.device("meta"):
            model = Model(depth)
            model.layers = jaxtorch.stack_layers(model.layers, remat=True)
            x = torch.empty(2, 4)
        optimizer = torch.optim.AdamW(model.parameters())

        @jaxtorch.jit
        def step(x: Tensor) -> None:
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step.lower(x).as_text().count("\n")

    assert lines(depth) == lines(3)


def test_what_cannot_be_stacked() -> None:
    with pytest.raises(ValueError, match="at least one layer"):
        jaxtorch.stack_layers([])
    with pytest.raises(TypeError, match="layer 1 is function"):
        jaxtorch.stack_layers([nn.Linear(2, 2), lambda x: x])  # type: ignore[list-item]
    with pytest.raises(CaptureError, match=r"weight is .* in layer 1"):
        jaxtorch.stack_layers([nn.Linear(2, 2), nn.Linear(2, 3)])
    stack = jaxtorch.stack_layers([nn.Linear(2, 2), nn.Linear(2, 2)])
    assert len(stack) == 2
    assert [*stack] == [stack]
    assert stack[:2] is stack
    for index in (0, -1, slice(1)):
        with pytest.raises(IndexError, match="run together"):
            stack[index]
