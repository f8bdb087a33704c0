"""`tensor_parallel` with torch's `ColwiseParallel()` and `RowwiseParallel()` for layers."""

from __future__ import annotations

import pytest
import torch
from jax.sharding import Mesh
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

import jaxtorch
from tests.sharding.on_8_devices._meshes import AUTO, EXPLICIT, P, Tensor, spec_of

WIDE = jaxtorch.mesh(2, "anything")
IDS = torch.arange(24).reshape(8, 3) % 16


def model() -> nn.Sequential:
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    return nn.Sequential(nn.Embedding(16, 8), mlp, nn.LayerNorm(8), nn.Linear(8, 16, bias=False))


def specs(module: nn.Module) -> dict[str, P]:
    return {name: spec_of(p) for name, p in module.named_parameters()}


def gradients(module: nn.Module, ids: Tensor) -> list[Tensor]:
    module(ids).square().sum().backward()
    return [p.grad.cpu() for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT, WIDE], ids=["auto", "explicit", "one axis"])
def test_layers_are_cut_as_torch_cuts_them(mesh: Mesh) -> None:
    axis = mesh.axis_names[-1]
    plan = {
        "0": RowwiseParallel(),
        "*.0": ColwiseParallel(),
        "*.2": RowwiseParallel(),
        "3": ColwiseParallel(),
    }
    ours, theirs = jaxtorch.tensor_parallel(model(), mesh, plan), model()
    assert specs(ours) == {
        "0.weight": P(axis),
        "1.0.weight": P(axis),
        "1.0.bias": P(axis),
        "1.2.weight": P(None, axis),
        "1.2.bias": P(),
        "2.weight": P(),
        "2.bias": P(),
        "3.weight": P(axis),
    }
    for a, b in zip(gradients(ours, IDS.to("jax")), gradients(theirs, IDS), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_an_embedding_by_columns_beside_a_spec() -> None:
    plan = {"1.0.weight": P(None, "data"), "1.0": ColwiseParallel(), "0": ColwiseParallel()}
    found = specs(jaxtorch.tensor_parallel(model(), AUTO, plan))
    assert [found[n] for n in ("0.weight", "1.0.weight", "1.0.bias")] == [
        P(None, "model"),
        P(None, "data"),
        P("model"),
    ]


def test_a_layer_itself() -> None:
    layer = jaxtorch.tensor_parallel(nn.Linear(8, 16), WIDE, {"": ColwiseParallel()})
    assert specs(layer) == {"weight": P("anything"), "bias": P("anything")}


@pytest.mark.parametrize(
    ("plan", "mesh", "error", "message"),
    [
        ({"q_proj": ColwiseParallel()}, AUTO, ValueError, "'q_proj' matches no layer"),
        ({"2": ColwiseParallel()}, AUTO, TypeError, "for Linear and Embedding, but '2' is a Layer"),
        (
            {"2": SequenceParallel()},
            AUTO,
            TypeError,
            "describes activations, whose sharding XLA chooses",
        ),
        (
            {"3": ColwiseParallel()},
            jaxtorch.mesh((4, 2), ("a", "b")),
            ValueError,
            "named 'model' or 'tp', but the mesh has 'a' and 'b'",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    plan: dict[str, object], mesh: Mesh, error: type[Exception], message: str
) -> None:
    module = model()
    with pytest.raises(error, match=message):
        jaxtorch.tensor_parallel(module, mesh, plan)
    assert all(p.device.type == "cpu" for p in module.parameters())
