"""Which device has which part of an array, over meshes of devices that need not exist."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec

from jaxtorch.insight.sharding import devices, drawing, sharding_of
from jaxtorch.widgets.devices import DevicesView
from tests.widgets.pages import harmless


class FakeDevice:
    def __init__(self, id: int):
        self.id = id


class FakeSharding:
    """Cuts an array along some axes: (axis, parts) each, devices in row-major order over them."""

    mesh = None
    spec = "P('a', 'b')"

    def __init__(self, *cuts: tuple[int, int], replicas: int = 1):
        self.cuts, self.replicas = cuts, replicas

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Any, tuple[slice, ...]]:
        counts = [count for _, count in self.cuts] + [self.replicas]
        indices = {}
        for i, coordinates in enumerate(np.ndindex(*counts)):
            index = [slice(None)] * len(shape)
            for (axis, count), at in zip(self.cuts, coordinates, strict=False):
                step = shape[axis] // count
                index[axis] = slice(at * step, (at + 1) * step)
            indices[FakeDevice(i)] = tuple(index)
        return indices


def test_a_matrix_cut_both_ways() -> None:
    drawn = drawing(FakeSharding((0, 2), (1, 4)), (8, 16))
    assert drawn.axes == (0, 1)
    assert drawn.rows == ((0, 4), (4, 8))
    assert drawn.columns == ((0, 4), (4, 8), (8, 12), (12, 16))
    assert drawn.parts == (((0,), (1,), (2,), (3,)), ((4,), (5,), (6,), (7,)))


def test_columns_with_replicas() -> None:
    drawn = drawing(FakeSharding((1, 2), replicas=3), (8, 16))
    assert drawn.rows == ((0, 8),)
    assert drawn.parts == (((0, 1, 2), (3, 4, 5)),)


def test_a_vector_is_a_row_and_a_number_one_part() -> None:
    drawn = drawing(FakeSharding((0, 2)), (8,))
    assert drawn.axes == (None, 0)
    assert drawn.parts == (((0,), (1,)),)
    assert drawing(FakeSharding(replicas=2), ()).parts == (((0, 1),),)


def test_of_three_axes_those_that_are_cut_are_drawn() -> None:
    drawn = drawing(FakeSharding((1, 2), (2, 2)), (5, 8, 16))
    assert (drawn.axes, drawn.left_out) == ((1, 2), ())
    drawn = drawing(FakeSharding((0, 2), (1, 2), (2, 2)), (4, 8, 16))
    assert (drawn.axes, drawn.left_out) == ((0, 1), (2,))
    assert drawn.parts[0][0] == (0, 1)


@pytest.mark.parametrize(
    "view", ["x[0]", "x.T", "x.reshape(2, 2, 6)", "x[:, 1:]", "x[1, 2]", "x[::2]"]
)
def test_a_view_on_one_device_has_its_own_shape(view: str) -> None:
    x = torch.ones(4, 6, device="jax")
    viewed = eval(view, {"x": x})
    drawn = sharding_of(viewed)
    assert drawn.shape == tuple(viewed.shape)
    assert drawn.dtype == "float32"


def test_a_real_array_and_a_tensor() -> None:
    x = torch.ones(3, 5, device="jax")
    assert sharding_of(x).parts == (((jax.devices()[0].id,),),)
    mesh = jax.make_mesh((1, 1), ("data", "model"), devices=jax.devices()[:1])
    array = jax.device_put(jnp.ones((4, 6)), NamedSharding(mesh, PartitionSpec("data", "model")))
    drawn = sharding_of(array)
    assert drawn.mesh == (("data", 1), ("model", 1))
    assert "data" in drawn.spec
    with pytest.raises(TypeError, match="on cpu"):
        sharding_of(torch.ones(2))
    with pytest.raises(TypeError, match="int is neither"):
        sharding_of(3)


def test_devices_are_those_of_jax() -> None:
    assert [d.id for d in devices()] == [d.id for d in jax.devices()]


def test_a_device_says_what_arrays_hold_of_it() -> None:
    before = devices()[0].allocated
    kept = torch.ones(1000, dtype=torch.float64, device="jax")
    assert devices()[0].allocated == before + kept.numel() * 8


def test_it_is_drawn_as_boxes_and_as_cells() -> None:
    drawn = drawing(FakeSharding((0, 2), (1, 2)), (8, 16))
    view = DevicesView(lambda: drawn, "<img src=x onerror=alert(1)>")
    assert view.text().splitlines()[2:] == [
        "      0:8   8:16",
        "    ┌─────┬──────┐",
        "0:4 │  0  │  1   │",
        "    ├─────┼──────┤",
        "4:8 │  2  │  3   │",
        "    └─────┴──────┘",
    ]
    page = harmless(view.html())
    assert "<img src=x onerror=alert(1)>" in page.text
    [chart] = [s for s in view.data()["page"]["sections"] if s["type"] == "chart"]
    assert chart["data"]["colors"][0][0] != chart["data"]["colors"][0][1]


def test_the_same_devices_have_one_colour() -> None:
    view = DevicesView(lambda: drawing(FakeSharding(replicas=2), (8, 16)), "x")
    [chart] = [s for s in view.data()["page"]["sections"] if s["type"] == "chart"]
    ((color,),) = chart["data"]["colors"]
    assert color.startswith("hsla(")
    assert "device" in DevicesView().text()
