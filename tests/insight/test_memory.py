"""What lives on the device: known tensors are found with their line and name, and what keeps them alive."""

from __future__ import annotations

import gc
import inspect
from typing import Any

import jax.numpy as jnp
import pytest
import torch

import jaxtorch
from jaxtorch.insight.memory import LiveArray, begin, cells, end, live_arrays, watching
from jaxtorch.insight.programs import Location
from jaxtorch.insight.retainers import NO_NAME, retainers
from jaxtorch.insight.sharding import sharding_of

SIZE = (97, 101)  # of no other tensor
BYTES = 97 * 101 * 4


@pytest.fixture(autouse=True)
def nothing_of_earlier_tests() -> None:
    gc.collect()


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def ours(namespace: dict[str, Any] | None = None) -> list[LiveArray]:
    return [a for a in live_arrays(namespace) if a.shape == SIZE]


def test_an_array_has_the_line_that_made_it() -> None:
    here, x = line(), torch.zeros(SIZE, device="jax")
    (live,) = ours()
    assert (live.nbytes, live.dtype, live.location) == (BYTES, "float32", Location(__file__, here))
    assert live.tensor
    assert live.made_by.startswith("zeros")
    del x
    assert not ours()


def test_so_has_one_that_was_copied_to_the_device() -> None:
    here, x = line(), torch.zeros(SIZE).to("jax")
    assert [(a.location, a.made_by) for a in ours()] == [(Location(__file__, here), "to")]
    del x


def test_a_result_of_a_captured_function_has_the_line_of_the_call() -> None:
    f = jaxtorch.pure(lambda x: x + 1, name="makes_it")
    x = torch.zeros(SIZE, device="jax")
    here, y = line(), f(x)
    assert {a.location.line for a in ours({"y": y}) if a.name == "y" and a.location} == {here}


def test_names_lead_through_modules_optimizers_and_containers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(101, 97, bias=False)).to("jax")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 101, device="jax")).sum().backward()
    optimizer.step()
    kept = {"deep": [(torch.ones(SIZE, device="jax"),)]}
    array = jnp.ones(SIZE)
    names = {a.name for a in ours({"m": model, "o": optimizer, "kept": kept, "array": array})}
    assert names == {
        "m.0.weight",
        "m.0.weight.grad",
        "o.state[0]['exp_avg']",
        "o.state[0]['exp_avg_sq']",
        "kept['deep'][0][0]",
        "array",
    }


def test_a_view_is_the_array_it_looks_at_and_both_names_are_one() -> None:
    base = torch.zeros(SIZE, device="jax")
    view = base[3:5]
    del base
    assert [a.name for a in ours({"view": view})] == ["view"]


def test_a_container_that_holds_itself_ends() -> None:
    loop: list[Any] = [torch.zeros(SIZE, device="jax")]
    loop.append(loop)
    assert [a.name for a in ours({"loop": loop})] == ["loop[0]"]


class Holder:
    pass


def why(namespace: dict[str, Any]) -> list[str]:
    (live,) = ours()
    return retainers(live.id, namespace)


def test_what_keeps_it_alive_is_a_way_from_a_name() -> None:
    def namespace() -> dict[str, Any]:
        holder = Holder()
        holder.history = [{"loss": torch.zeros(SIZE, device="jax")}]  # type: ignore[attr-defined]
        return {"holder": holder}

    assert why(namespace()) == ["holder.history[0]['loss']"]


def test_a_closure_keeps_it_alive() -> None:
    def make() -> Any:
        x = torch.zeros(SIZE, device="jax")
        return lambda: x

    (way,) = why({"f": make()})
    assert way.startswith("f (in the closure of ")
    assert "make.<locals>.<lambda>" in way


def test_a_module_keeps_it_alive() -> None:
    namespace = {"model": torch.nn.Sequential(torch.nn.Linear(101, 97, bias=False)).to("jax")}
    assert why(namespace) == ["model.0.weight"]


def test_a_gradient_is_kept_by_its_leaf() -> None:
    def namespace() -> dict[str, Any]:
        leaf = torch.zeros(SIZE, device="jax", requires_grad=True)
        leaf.sum().backward()
        return {"leaf": leaf}

    names = namespace()
    gradient = next(a for a in ours(names) if a.name == "leaf.grad")
    assert retainers(gradient.id, names) == ["leaf.grad"]


def test_a_variable_of_a_running_function_keeps_it_alive() -> None:
    kept = torch.zeros(SIZE, device="jax")
    (way,) = why({})
    assert way.startswith("kept, a local variable of ")
    assert "test_a_variable_of_a_running_function" in way
    del kept


def test_an_output_that_ipython_keeps_is_called_so() -> None:
    (way,) = why({"_5": torch.zeros(SIZE, device="jax")})
    assert way.startswith("Out[5], which IPython keeps")


def test_what_only_a_graph_holds_is_said() -> None:
    def loss() -> torch.Tensor:
        x = torch.zeros(SIZE, device="jax", requires_grad=True)
        return (x * 2).cos().sum()

    kept = loss()
    gc.collect()
    products = [a for a in ours() if a.made_by.startswith("mul")]
    assert len(products) == 1
    assert retainers(products[0].id, {}) == [NO_NAME]
    del kept


def test_what_is_gone_is_an_error() -> None:
    x = torch.zeros(SIZE, device="jax")
    (live,) = ours()
    del x
    with pytest.raises(LookupError, match="no such array"):
        retainers(live.id)


def test_asking_keeps_nothing_alive() -> None:
    x = torch.zeros(SIZE, device="jax")
    (live,) = ours({"x": x})
    retainers(live.id, {"x": x})
    del x
    gc.collect()
    assert not ours()


def test_a_cell_has_its_peak_and_the_session_keeps_its_own() -> None:
    large = 1 << 20
    torch.jax.reset_peak_memory_stats()  # type: ignore[attr-defined]
    start = torch.jax.memory_allocated()  # type: ignore[attr-defined]
    first = torch.zeros(8 * large // 4, device="jax")
    del first
    with watching(7):
        second = torch.zeros(2 * large // 4, device="jax")
        del second
        third = torch.zeros(large // 4, device="jax")
    cell = cells()[-1]
    assert (cell.cell, cell.peak - cell.before, cell.after - cell.before) == (
        7,
        2 * large,
        large,
    )
    assert torch.jax.max_memory_allocated() >= start + 8 * large  # type: ignore[attr-defined]
    torch.jax.reset_peak_memory_stats()  # type: ignore[attr-defined]
    assert torch.jax.max_memory_allocated() < start + 4 * large  # type: ignore[attr-defined]
    del third


def test_the_peak_of_the_session_is_right_within_a_cell_too() -> None:
    large = 1 << 20
    torch.jax.reset_peak_memory_stats()  # type: ignore[attr-defined]
    first = torch.zeros(8 * large // 4, device="jax")
    before = torch.jax.max_memory_allocated()  # type: ignore[attr-defined]
    del first
    with watching(None):
        assert torch.jax.max_memory_allocated() == before  # type: ignore[attr-defined]
        torch.jax.reset_peak_memory_stats()  # type: ignore[attr-defined]
        assert torch.jax.max_memory_allocated() < before  # type: ignore[attr-defined]


def test_cells_within_cells() -> None:
    large = 1 << 20
    outer = begin()
    first = torch.zeros(large // 4, device="jax")
    inner = begin()
    second = torch.zeros(4 * large // 4, device="jax")
    del second
    end(inner, 2)
    end(outer, 1)
    two, one = cells()[-2:]
    assert two.peak - two.before == 4 * large
    assert one.peak - one.before == 5 * large
    assert one.after - one.before == large
    del first


def test_a_tensor_is_listed_with_its_own_shape() -> None:
    """The gradient of a bias is stored as a row of a matrix."""
    net = torch.nn.Sequential(torch.nn.Linear(41, 43)).to("jax")
    net(torch.ones(47, 41, device="jax")).square().mean().backward()
    view = torch.ones(6, 59, device="jax")[1]
    shapes = {a.name: a.shape for a in live_arrays({"net": net, "view": view})}
    for name, tensor in net.named_parameters():
        assert shapes[f"net.{name}"] == tensor.shape
        assert shapes[f"net.{name}.grad"] == tensor.shape
    assert shapes["view"] == (6, 59)  # a part of the array keeps all of it
    assert sharding_of(net[0].bias.grad).shape == (43,)


def test_arrays_of_one_size_are_in_the_order_of_their_names() -> None:
    kept = {"z": [torch.ones(61, 67, device="jax") for _ in range(12)]}
    names = [a.name for a in live_arrays(kept) if a.shape == (61, 67)]
    assert names == [f"z[{i}]" for i in range(12)]
