"""`%jax show`: what its tree says of a tensor, and that it stays small."""

from __future__ import annotations

import sys

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxtorch.insight.sharding import Drawing
from jaxtorch.widgets import show
from jaxtorch.widgets.saved import MOST_PAGE, saved_size, start_of
from jaxtorch.widgets.show import ShowView


def text(value: object) -> str:
    return repr(ShowView(value))


def test_a_tensor_is_described_with_values_memory_and_place() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 9.0]], device="jax")
    shown = text(x)
    for part in ("tensor float32[2, 3]", "4 ± 2.58 (1 to 9)", "24 B", "jax:0", "[4., 5., 9.]"):
        assert part in shown
    assert "Parameter float32[2, 3]" in text(nn.Parameter(x))
    assert "requires grad" in text(x.requires_grad_())


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (torch.tensor([True, False, True]), ["bool[3]", "2 of 3 true", "cpu"]),
        (torch.tensor([3, -1, 7]), ["int64[3]", "-1 to 7", "24 B"]),
        (torch.tensor([1.0, float("nan"), float("inf")]), ["1 to 1", "2 not finite"]),
        (torch.tensor([1.5], dtype=torch.bfloat16), ["bfloat16[1]", "2 B", "1.5"]),
        (torch.tensor([1 + 2j]), ["complex64[1]", "1.+2.j"]),
        (torch.zeros(0, 3), ["float32[0, 3]", "0"]),
        (torch.tensor(5.0), ["float32[]", "5"]),
    ],
)
@pytest.mark.filterwarnings("error")  # treescope only warns of errors in a drawing
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_every_kind_of_value(value: torch.Tensor, parts: list[str], device: str) -> None:
    shown = text(value.to(device))
    for part in parts:
        assert part.replace("cpu", f"{value.to(device).device}") in shown
    assert "<" in ShowView(value.to(device))._repr_html_()


def test_a_view_says_what_it_keeps_alive() -> None:
    x = torch.ones(64, 1024, device="jax")
    assert "keeps 256 KiB alive" in text(x[0])
    assert "alive" not in text(x)
    assert "alive" not in text(x.T)


def test_a_module_has_its_parameters_gradients_and_sums() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)).to("jax")
    net(torch.ones(4, 3, device="jax")).sum().backward()
    shown = text(net)
    first, *_ = shown.splitlines()
    assert first.startswith("30 parameters, ")
    assert first.endswith(" on jax:0")
    for part in ("Linear(", "weight=Parameter float32[5, 3]", "running_mean=tensor float32[5]"):
        assert part in shown


def test_a_sharded_tensor_says_over_what(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(8, 2, device="jax")
    rows = ((0, 4), (4, 8))
    halves = (((0, 1),), ((2, 3),))  # each half on two devices
    mesh = (("data", 2), ("copies", 2))
    sharding = Drawing(
        (8, 2), "float32", "P('data',)", mesh, (0, None), rows, ((0, 1),), halves, ()
    )
    assert "P(" not in text(x)
    monkeypatch.setattr(show, "sharding_of", lambda tensor: sharding)
    assert "P('data',) over 4 devices (data 2, copies 2)" in text(x)


def test_a_tensor_too_large_to_copy_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(9, 11, device="jax")
    monkeypatch.setattr(show, "MOST_READ", 98)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: pytest.fail("copied"))
    assert "tensor float32[9, 11], 396 B, jax:0" in text(x)


def test_containers_and_arrays_of_jax_and_numpy() -> None:
    shown = text({"a": [torch.ones(3, device="jax")], "b": jnp.arange(3), "c": np.ones(2)})
    for part in ("'a'", "tensor float32[3]", "jax.Array", "int32", "np.array"):
        assert part in shown


def test_what_is_saved_stays_small() -> None:
    layers = [nn.TransformerEncoderLayer(32, 4, 64) for _ in range(12)]
    for value in (nn.Sequential(*layers).to("jax"), torch.randn(500, 500, device="jax")):
        view = ShowView(value)
        assert saved_size(view.html()) <= MOST_PAGE
        assert start_of(view.text())[:20] in view.html()  # for a page without scripts


def test_nothing_of_treescopes_settings_stays() -> None:
    import treescope

    before = treescope.active_renderer.get(), treescope.active_autovisualizer.get()
    ShowView(torch.ones(3, device="jax"))._repr_html_()
    assert (treescope.active_renderer.get(), treescope.active_autovisualizer.get()) == before


def test_without_treescope_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "treescope", None)
    with pytest.raises(ImportError):
        ShowView(1)
