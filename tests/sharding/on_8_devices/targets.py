"""A session on a mesh, and its programs on a TPU of as many chips."""

from __future__ import annotations

import pytest
import torch
from jax.sharding import PartitionSpec as P

import jaxtorch
from jaxtorch.capture.background import background
from jaxtorch.capture.target import request
from tests.libtpu import needs_libtpu

pytestmark = needs_libtpu


def test_the_mesh_of_the_session_is_that_of_the_target() -> None:
    mesh = jaxtorch.mesh((2, 4), ("data", "model"))
    x = jaxtorch.shard(torch.ones(8, 128, device="jax"), P("data"), mesh)
    w = jaxtorch.shard(torch.ones(128, 512, device="jax"), P(None, "model"), mesh)
    total = torch.zeros(8, 512, device="jax")
    total = jaxtorch.shard(total, P("data", "model"), mesh)
    f = jaxtorch.pure(lambda x: (x @ w.requires_grad_()).tanh().sum(), name="f")
    step = jaxtorch.jit(lambda x: total.add_(x @ w.detach()), name="step")
    single = jaxtorch.pure(lambda x: x.tanh(), name="single")
    with jaxtorch.target("v5e:2x4") as target:
        f(x).backward()
        step(x)
        single(torch.ones(8, 128, device="jax"))
    found = {(p.name, p.part): p for p in target.wait()}
    assert {key: p.error for key, p in found.items()} == {
        ("f", "saving"): "",
        ("f", "backward"): "",
        ("step", ""): "",
        ("single", ""): "",
    }
    for name, part in (("f", "saving"), ("f", "backward"), ("step", "")):
        executable = found[name, part].executable
        assert executable is not None
        assert executable.mesh == {"data": 2, "model": 4}
        assert "num_partitions=8" in executable.hlo
        assert not found[name, part].note
    forward = found["f", "saving"].executable
    assert forward is not None
    assert "f32[4,128]" in forward.hlo  # a part of x
    assert "f32[128,128]" in forward.hlo  # a part of w
    assert "all-reduce" in forward.hlo
    assert found["single", ""].note.startswith("compiled for one of 8 devices")
    other = request(found["step", ""].record, "v5e:2x2")
    background.wait([other])
    assert other.error == "the session's mesh has 8 devices, but v5e:2x2 has 4"


@pytest.mark.parametrize("target", ["v5e:1x1", "v5e:2x2"])
def test_a_target_of_another_size_is_refused(target: str) -> None:
    model = jaxtorch.fsdp(torch.nn.Linear(16, 8).to("jax"), jaxtorch.mesh(8, "data"))
    step = jaxtorch.jit(lambda x: model(x).sum())
    x = torch.ones(8, 16, device="jax")
    with pytest.raises(ValueError, match=r"divided over 8 devices, but 'v5e:\dx\d' has"):
        step.lower(x, target=target)
    assert step.lower(x, target="v5e:2x4").stablehlo
