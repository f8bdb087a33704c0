"""Bad input of the functions that shard: an error of one sentence, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from jax.sharding import NamedSharding
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard

import jaxtorch
from jaxtorch.parallel.specs import Spec
from tests.sharding.on_8_devices._meshes import AUTO, P, numbers

FOUR = jaxtorch.mesh(4, "data")


@contextmanager
def refused(kind: type[Exception], message: str) -> Iterator[None]:
    """An error of one sentence."""
    with pytest.raises(kind, match=message) as caught:
        yield
    assert "\n" not in str(caught.value)


BAD_SPECS: dict[str, tuple[Spec, type[Exception], str]] = {
    "no axis": (P("dta"), ValueError, r"names the axis 'dta', .* \(did you mean 'data'\?\)"),
    "an axis twice": (P("data", "data"), ValueError, "twice"),
    "too long": (P("data", None, None), ValueError, "has 3 entries, but .* shape \\(6, 4\\)"),
    "no division": (
        P("data"),
        ValueError,
        "dimension 0 has 6 elements, .* 4 devices .* pad it to 8",
    ),
    "no division by two axes": (
        P(None, ("data", "model")),
        ValueError,
        "8 devices along 'data' and",
    ),
    "Partial": ([Partial(), Replicate()], ValueError, "Partial .* Shard or Replicate"),
    "too few placements": ([Shard(0)], ValueError, "1 placements .* 2 axes 'data' and 'model'"),
    "a negative dimension": ([Shard(-3), Replicate()], ValueError, "dim=-3.* with 2 dimensions"),
    "a dimension too many": ([Replicate(), Shard(2)], ValueError, "has 3 entries"),
    "a number": (3, TypeError, "3 is not a spec: write jax.sharding.PartitionSpec"),  # type: ignore[dict-item]
    "another mesh": (NamedSharding(FOUR, P("data")), ValueError, "but mesh= is .*: omit mesh"),
}


@pytest.mark.parametrize("name", BAD_SPECS)
def test_a_bad_spec_changes_nothing(name: str) -> None:
    spec, kind, message = BAD_SPECS[name]
    x, model = numbers(6, 4), nn.Sequential(nn.Linear(8, 8), nn.Linear(4, 6))
    with refused(kind, f"^shard: .*{message}"):
        jaxtorch.shard(x, spec, AUTO)
    with refused(kind, f"^shard: tensor 2 of 2: .*{message}"):
        jaxtorch.shard([torch.zeros(()), x], [None, spec], AUTO)  # type: ignore[list-item]
    with refused(kind, f"^shard: parameter '1.weight': .*{message}"):
        jaxtorch.shard(model, {"0.weight": P("data"), "1.weight": spec}, AUTO)
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    f = jaxtorch.pure(lambda x: jaxtorch.shard(x, spec, AUTO))
    with pytest.raises(kind, match=message):
        f(x.to("jax"))


def _bad_mesh() -> object:
    return torch.nn.Linear(1, 1)


BAD_CALLS: dict[str, tuple[Callable[[nn.Module], object], type[Exception], str]] = {
    "more devices": (
        lambda m: jaxtorch.mesh(16, "data"),
        ValueError,
        "16 devices, .* are 8: .*XLA_FLAGS=.*count=16",
    ),
    "names": (lambda m: jaxtorch.mesh((4, 2), "data"), ValueError, "needs 2 axis names"),
    "a name twice": (lambda m: jaxtorch.mesh((4, 2), ("a", "a")), ValueError, "different names"),
    "no devices": (lambda m: jaxtorch.mesh(0, "a"), ValueError, "must be positive"),
    "-1 twice": (
        lambda m: jaxtorch.mesh((-1, -1), ("a", "b")),
        ValueError,
        "at most one may be -1",
    ),
    "-1 without rest": (
        lambda m: jaxtorch.mesh((-1, 3), ("a", "b")),
        ValueError,
        "8 devices cannot fill",
    ),
    "cuda": (lambda m: jaxtorch.init_device_mesh("cuda", (8,)), ValueError, "device type 'jax'"),
    "no mesh": (lambda m: jaxtorch.shard(torch.ones(4), "data"), ValueError, "no mesh was given"),
    "no mesh for a module": (lambda m: jaxtorch.shard(m, "data"), ValueError, "no mesh was given"),
    "no mesh object": (
        lambda m: jaxtorch.shard(m, "data", _bad_mesh()),  # type: ignore[type-var]
        TypeError,
        "must be a jax.sharding.Mesh",
    ),
    "no rule": (
        lambda m: jaxtorch.shard(m, {"wieght": P()}, AUTO),
        ValueError,
        "rule 'wieght' matches no .* 'weight'",
    ),
    "no tensor": (lambda m: jaxtorch.shard("x", P(), AUTO), TypeError, "expected a tensor"),
    "specs of other keys": (
        lambda m: jaxtorch.shard({"x": torch.ones(4)}, {"y": P()}, AUTO),
        ValueError,
        "keys of the tensors, but \\['x', 'y'\\]",
    ),
    "too few specs": (
        lambda m: jaxtorch.shard([torch.ones(4)] * 2, [P()], AUTO),
        ValueError,
        "1 specs were given for 2",
    ),
    "sparse": (lambda m: jaxtorch.shard(torch.eye(4).to_sparse(), P(), AUTO), TypeError, "sparse"),
    "meta": (
        lambda m: jaxtorch.shard(nn.Linear(4, 4, device="meta"), P(), AUTO),
        TypeError,
        "parameter 'weight' is on the meta device",
    ),
    "lazy": (lambda m: jaxtorch.shard(nn.LazyLinear(4), P(), AUTO), TypeError, "no shape yet"),
    "in a transform": (
        lambda m: torch.vmap(lambda x: jaxtorch.shard(x, "data", AUTO))(torch.ones(2, 8)),
        TypeError,
        "inside torch.vmap or torch.func.grad",
    ),
    "a spec for an optimizer": (
        lambda m: jaxtorch.shard(torch.optim.SGD(m.parameters()), P(), AUTO),
        TypeError,
        "takes no spec",
    ),
    "the CPU": (lambda m: jaxtorch.sharding_of(torch.ones(4)), TypeError, "a tensor on cpu"),
    "no tensor's sharding": (lambda m: jaxtorch.sharding_of(3), TypeError, "not int"),  # type: ignore[arg-type]
    "no axis": (
        lambda m: jaxtorch.fsdp(m, AUTO, axis="dat"),
        ValueError,
        "no axis 'dat', only 'data'",
    ),
    "which axis": (
        lambda m: jaxtorch.data_parallel(m, jaxtorch.mesh((2, 2), ("a", "b"))),
        ValueError,
        "the mesh has the axes 'a' and 'b': name one",
    ),
    "no rules": (
        lambda m: jaxtorch.tensor_parallel(m, AUTO, P("model")),  # type: ignore[arg-type]
        TypeError,
        "rules must be a dict",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_changes_nothing(name: str) -> None:
    call, kind, message = BAD_CALLS[name]
    module = nn.Linear(4, 8)
    with refused(kind, message):
        call(module)
    assert module.weight.device.type == "cpu"
    assert not module._forward_pre_hooks


WRONG_TYPES: dict[str, tuple[Callable[[], object], str]] = {
    "a mesh in the wrong order": (lambda: jaxtorch.mesh("data", 8), "a mesh takes whole numbers"),
    "a size that is no whole number": (lambda: jaxtorch.mesh(8.0, "data"), "not 8.0 and 'data'"),
    "a size that is a bool": (lambda: jaxtorch.mesh(True, "data"), "a mesh takes whole numbers"),
    "a name that is empty": (lambda: jaxtorch.mesh(8, ""), "a mesh takes whole numbers"),
    "a mesh without axes": (lambda: jaxtorch.mesh((), ()), "a mesh takes whole numbers"),
    "a list of layers": (lambda: jaxtorch.fsdp([nn.Linear(8, 8)], FOUR), "fsdp takes a module"),
    "a tensor": (lambda: jaxtorch.data_parallel(numbers(8), FOUR), "data_parallel takes a module"),
    "a batch dimension that is a text": (
        lambda: jaxtorch.data_parallel(nn.Linear(8, 8), FOUR, batch_dimension="x"),
        "batch_dimension must be a whole number, not 'x'",
    ),
    "a name as placements": (
        lambda: jaxtorch.distribute_tensor(numbers(8), FOUR, "data"),
        "takes a list of placements",
    ),
    "one placement": (
        lambda: jaxtorch.distribute_tensor(numbers(8), FOUR, Shard(0)),
        "takes a list of placements",
    ),
    "a list to distribute": (lambda: jaxtorch.distribute_tensor([1.0], FOUR), "takes a tensor"),
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_a_wrong_type_is_one_sentence(name: str) -> None:
    mistake, message = WRONG_TYPES[name]
    with refused(TypeError, message):
        mistake()
