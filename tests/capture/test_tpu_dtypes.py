"""No program computes in 64 bits on a TPU, which has none, unless the torch code does.

The TPU's compiler replaces 64-bit numbers by pairs of 32-bit ones before it optimizes, so most of them do not show in
its HLO. The traced program shows them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator

import jax
import pytest
import torch
import transformers
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from torch import nn

import jaxtorch
from jaxtorch.capture.lowering import Lowered
from jaxtorch.capture.tpu import shared_compiler
from jaxtorch.insight.hlo.work import name_set
from tests.libtpu import missing

F = nn.functional
Tensor = torch.Tensor
_IDS = 2 * 16  # the size of the largest batch of token ids
# Moving numbers is no arithmetic, and 64-bit indices are moved until they are used.
_MOVES = name_set(
    """
    broadcast_in_dim convert_element_type copy copy_p dynamic_slice dynamic_update_slice expand_dims gather iota pad
    reshape rev scatter scatter-add select_n slice split squeeze concatenate transpose stop_gradient
    """
)


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.cells, self.head = kind(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.cells(x)[0][:, -1])
        return outputs


class Denoiser(nn.Module):
    """A small U-Net with the time of a diffusion."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.down = nn.Linear(8, 8), nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.middle, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(4, device=x.device) * (-math.log(100.0) / 4)).to(x.dtype)
        angles = t[:, None].to(x.dtype) * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        h = F.silu(self.norm(self.middle(self.down(x)))) + time[:, :, None, None]
        result: Tensor = self.last(torch.cat([x, self.up(h)], 1))
        return result


def _language(kind: str) -> tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor]]:
    """A language model of transformers, and its loss."""
    if kind == "llama":
        sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64}
        llama = transformers.LlamaConfig(**sizes, num_hidden_layers=2, num_attention_heads=4)
        return transformers.LlamaForCausalLM(llama), _own_loss(use_cache=False)
    if kind == "gpt":
        gpt = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=4)
        return transformers.GPT2LMHeadModel(gpt), _own_loss(use_cache=False)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64}
    bert = transformers.BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=4)
    return transformers.BertForMaskedLM(bert), _own_loss()


def _own_loss(**options: object) -> Callable[[nn.Module, Tensor], Tensor]:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        own: Tensor = model(input_ids=ids, labels=ids, **options).loss
        return own

    return loss


def _loss(model: nn.Module, *inputs: Tensor) -> Tensor:
    outputs = model(*inputs)
    logits = outputs if isinstance(outputs, Tensor) else outputs.logits
    return F.cross_entropy(
        logits.flatten(1), torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    )


def made(name: str, dtype: torch.dtype) -> tuple[nn.Module, Callable[..., Tensor], list[Tensor]]:
    """A model, its loss, and its inputs, on the meta device."""
    with torch.device("meta"):
        ids = torch.empty(2, 16, dtype=torch.int64)
        image, sequence = torch.empty(2, 8, 8, 8, dtype=dtype), torch.empty(2, 6, 8, dtype=dtype)
        if name in ("gpt", "bert", "llama"):
            model, loss = _language(name)
            return model.to(dtype), loss, [ids]
        if name == "vit":
            vit = transformers.ViTConfig(
                hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                image_size=8, patch_size=4, num_channels=8,
            )  # fmt: skip
            return transformers.ViTForImageClassification(vit).to(dtype), _loss, [image]
        if name == "unet":
            noisy, t = torch.empty(2, 4, 8, 8, dtype=dtype), torch.empty(2, dtype=torch.int64)
            return Denoiser().to(dtype), _loss, [noisy, t]
        others: dict[str, tuple[nn.Module, Tensor]] = {
            "cnn": (
                nn.Sequential(
                    nn.Conv2d(8, 4, 3), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 4)
                ),
                image,
            ),
            "resnet": (Residual(), image),
            "lstm": (Recurrent(nn.LSTM), sequence),
            "gru": (Recurrent(nn.GRU), sequence),
            "mlp": (
                nn.Sequential(
                    nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 4)
                ),
                sequence[:, 0],
            ),
        }
        module, x = others[name]
        return module.to(dtype), _loss, [x]


_MODELS = ("cnn", "resnet", "lstm", "gru", "gpt", "bert", "vit", "llama", "mlp", "unet")


def lowered(name: str, dtype: torch.dtype, adam: bool = False) -> Lowered:
    """The step of a model, forward and gradients."""
    model, loss, inputs = made(name, dtype)
    optimizer = torch.optim.AdamW(model.parameters()) if adam else None

    @jaxtorch.jit
    def step(*inputs: Tensor) -> Tensor:
        result = loss(model, *inputs)
        result.backward()
        if optimizer is not None:
            optimizer.step()
        return result

    return step.lower(*inputs, target="v5e:1x1")


def equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    for equation in jaxpr.eqns:
        inner = [
            j.jaxpr if isinstance(j, ClosedJaxpr) else j
            for value in equation.params.values()
            for j in (value if isinstance(value, tuple | list) else (value,))
            if isinstance(j, Jaxpr | ClosedJaxpr)
        ]
        yield from (e for j in inner for e in equations(j)) if inner else (equation,)


def wide(jaxpr: ClosedJaxpr, most: int) -> list[str]:
    """The operations on 64-bit numbers: on floating-point ones, and on more than `most` integers."""
    found = []
    for equation in equations(jaxpr.jaxpr):
        for variable in (*equation.invars, *equation.outvars):
            dtype, size = str(getattr(variable.aval, "dtype", "")), math.prod(variable.aval.shape)
            floating = dtype in ("float64", "complex128") and (
                size > 1 or equation.primitive.name not in _MOVES
            )
            integer = dtype in ("int64", "uint64") and size > most
            if floating or (integer and equation.primitive.name not in _MOVES):
                found.append(str(equation)[:200])
    return found


_CASES = [(name, dtype, False) for name in _MODELS for dtype in (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize(
    ("name", "dtype", "adam"),
    [*_CASES, ("mlp", torch.float32, True), ("llama", torch.bfloat16, True)],
)
def test_no_arithmetic_in_64_bits(name: str, dtype: torch.dtype, adam: bool) -> None:
    assert wide(lowered(name, dtype, adam).jaxpr, _IDS) == []


@pytest.mark.parametrize("name", ["cnn", "lstm", "gpt", "unet"])
def test_the_tpus_program_has_no_float64(name: str) -> None:
    if reason := missing():
        pytest.skip(reason)
    with shared_compiler():
        hlo = lowered(name, torch.bfloat16).compile().hlo
    assert not re.search(r"\b(f64|c128)\[", hlo)
    # What remains of 64-bit numbers: the two halves of inputs.
    inputs = set(re.findall(r"(%[\w.]+) = \S+ parameter\(", hlo))
    for line in hlo.splitlines():
        if "X64Split" in line:
            operand = re.search(r"custom-call\((%[\w.]+)\)", line)
            assert operand is not None, line
            assert operand[1] in inputs, line


def test_the_check_finds_what_torch_code_has() -> None:
    f = jaxtorch.pure(
        lambda x: (x.double() * 2).sum() + torch.arange(100, device=x.device).cumsum(0).sum()
    )
    found = wide(f.lower(torch.empty(8, device="meta")).jaxpr, _IDS)
    assert any("f64" in text for text in found)
    with jax.enable_x64(True):
        assert jax.numpy.zeros(1, "float64").dtype == "float64"
