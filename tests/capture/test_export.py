"""Programs that leave the process (`export`) and that come from outside (`from_exported`): as on torch's CPU."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import dataclass

import jax
import numpy as np
import pytest
import torch
from torch import nn

import jaxtorch


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 4)

    def forward(self, ids, scale):
        x = self.norm(self.embed(ids).mean(1)) * scale
        return {"logits": self.out(x), "hidden": (x, x.relu())}


def block():
    torch.manual_seed(0)
    return Block().eval(), torch.randint(0, 11, (3, 5)), torch.randn(3, 1)


# -- export -----------------------------------------------------------------------------------------------------

_LOADER = """
import sys
import jax, numpy as np
import jax.export
given = np.load(sys.argv[1])
with open(sys.argv[2], "rb") as file:
    program = jax.export.deserialize(bytearray(file.read()))
out = program.call(given["ids"].astype(np.int32), given["scale"])
assert "torch" not in sys.modules and "jaxtorch" not in sys.modules
np.savez(sys.argv[3], logits=out["logits"], hidden=out["hidden"][1])
"""


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_an_artifact_loads_without_torch(tmp_path, device):
    model, ids, scale = block()
    expected = model(ids, scale)
    data = jaxtorch.export(copy.deepcopy(model).to(device), (ids, scale)).serialize()
    (tmp_path / "program").write_bytes(data)
    np.savez(tmp_path / "in.npz", ids=ids.numpy(), scale=scale.numpy())
    names = [str(tmp_path / name) for name in ("in.npz", "program", "out.npz")]
    done = subprocess.run([sys.executable, "-c", _LOADER, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    out = np.load(tmp_path / "out.npz")
    torch.testing.assert_close(torch.from_numpy(out["logits"]), expected["logits"].detach())
    torch.testing.assert_close(torch.from_numpy(out["hidden"]), expected["hidden"][1].detach())


def test_weights_as_inputs():
    model, ids, scale = block()
    program = jaxtorch.export(model, (ids,), {"scale": scale}, weights=False)
    assert len(program.in_avals) == len(model.state_dict()) + 2
    state = {name: t.numpy() * 2 for name, t in model.state_dict().items()}
    state["norm.num_batches_tracked"] = state["norm.num_batches_tracked"].astype(np.int32)
    out = program.call(state, ids.numpy().astype(np.int32), scale=scale.numpy())
    for parameter in [*model.parameters(), *model.buffers()]:
        parameter.data.mul_(2)
    torch.testing.assert_close(
        torch.from_dlpack(out["logits"]), model(ids, scale)["logits"].detach()
    )


def test_an_artifact_of_a_function_and_its_gradient():
    def f(x, factor):
        return (x.sin() * factor).sum()

    x = torch.randn(5)
    program = jax.export.deserialize(jaxtorch.export(f, (x, 3)).serialize(vjp_order=1))
    gradient = jax.grad(lambda x: program.call(x, None))(x.numpy())
    torch.testing.assert_close(torch.from_dlpack(gradient), x.cos() * 3)


def test_64_bit_types_follow_jax():
    x = torch.randn(3, dtype=torch.float64)
    assert jaxtorch.export(torch.sin, (x,)).in_avals[0].dtype == np.float32
    with jax.enable_x64(True):
        program = jaxtorch.export(torch.sin, (x,))
        assert program.in_avals[0].dtype == np.float64
        out = program.call(x.numpy())
    torch.testing.assert_close(torch.from_dlpack(out), x.sin())


def test_an_artifact_for_another_platform():
    program = jaxtorch.export(torch.tanh, (torch.zeros(2),), platforms=["tpu", "cuda"])
    assert program.platforms == ("tpu", "cuda")
    assert "stablehlo.tanh" in program.mlir_module()


@dataclass
class Result:
    mean: torch.Tensor
    rest: list


def test_results_come_in_plain_containers():
    x = torch.arange(4.0)
    out = jaxtorch.export(lambda x: Result(x.mean(), [x, None, (x + 1,)]), (x,)).call(x.numpy())
    assert float(out["mean"]) == 1.5
    assert out["rest"][1] is None
    assert out["rest"][2][0].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("model", "words"),
    [(nn.BatchNorm1d(4), "writes to a tensor"), (nn.Dropout(), "random numbers")],
)
def test_effects_are_refused(model, words):
    with pytest.raises(RuntimeError, match=words):
        jaxtorch.export(model, (torch.randn(3, 4),))


# -- from_exported ----------------------------------------------------------------------------------------------


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))


def test_an_exported_program_runs_for_every_size_it_was_exported_for():
    model = mlp()
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (torch.randn(3, 4),), dynamic_shapes=({0: batch},))
    fast = jaxtorch.from_exported(program)
    before = jaxtorch.compile_count()
    for n in (3, 6, 3, 6):
        x = torch.randn(n, 4)
        with torch.no_grad():
            out = fast(x.to("jax"))
        assert out.device.type == "jax"
        torch.testing.assert_close(out.cpu(), model(x).detach())
    assert jaxtorch.compile_count() - before == 2
    with pytest.raises(AssertionError, match="Guard failed"):
        fast(torch.randn(3, 5).to("jax"))


def test_an_exported_program_takes_the_cpus_tensors():
    model, x = mlp(), torch.randn(3, 4)
    out = jaxtorch.from_exported(torch.export.export(model, (x,)))(x)
    assert out.device.type == "cpu"
    torch.testing.assert_close(out, model(x))


def test_an_exported_program_trains():
    model, x = mlp(), torch.randn(3, 4)
    fast = jaxtorch.from_exported(torch.export.export(model, (x,)))
    losses = []
    for module, data in ((model, x), (fast, x.to("jax"))):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = module(data).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach().cpu())
    torch.testing.assert_close(losses[1], losses[0])
    for own, expected in zip(fast.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(own.detach().cpu(), expected.detach())


def test_an_exported_program_keeps_running_statistics():
    model, x = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), torch.randn(6, 4)
    fast = jaxtorch.from_exported(torch.export.export(model, (x,)))
    torch.testing.assert_close(fast(x.to("jax")).cpu(), model(x))
    own = {name: t.cpu() for name, t in fast.module.named_buffers()}
    torch.testing.assert_close(own, dict(model.named_buffers()))


def test_an_exported_programs_arguments_results_and_factories():
    class Net(nn.Module):
        def forward(self, x, *, pair):
            return {"sum": x + torch.arange(x.shape[-1]), "rest": [pair["b"] * 2, None]}

    args, kwargs = (torch.randn(3, 4),), {"pair": {"b": torch.ones(2)}}
    fast = jaxtorch.from_exported(torch.export.export(Net(), args, kwargs))
    out = fast(args[0].to("jax"), pair={"b": torch.ones(2, device="jax")})
    torch.testing.assert_close(out["sum"].cpu(), args[0] + torch.arange(4))
    assert out["rest"][0].tolist() == [2, 2]
    assert out["rest"][1] is None


def test_an_exported_program_has_no_modes():
    fast = jaxtorch.from_exported(torch.export.export(mlp(), (torch.randn(3, 4),)))
    with pytest.raises(RuntimeError, match=r"before torch\.export"):
        fast.eval()
