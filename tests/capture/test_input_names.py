"""The inputs of captured programs have the names of what they are, in HLO and StableHLO and in the data of views."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn

import jaxtorch
from jaxtorch.base.naming import distinct, hlo_with_names, readable, stacked
from jaxtorch.insight.hlo.reading import Reading
from jaxtorch.insight.programs import ProgramInfo, programs

_IN_MAIN = re.compile(r"%([\w.$-]+): tensor")


def names_of(info: ProgramInfo) -> list[str]:
    """The names of a program's inputs, which must be the same in every form."""
    reading = Reading(info)
    parameters = [i for i in reading.module.entry.instructions if i.opcode == "parameter"]
    parameters.sort(key=lambda i: i.fields.get(9, 0))
    names = [i.name for i in parameters]
    entry = reading.hlo_text[reading.hlo_text.index("\nENTRY") :]
    assert re.findall(r"([\w.-]+): ", entry.split(" -> ")[0]) == names
    for name in names:
        assert f"%{name} = " in entry
    text = info.stablehlo()
    assert text is not None
    main = next(line for line in text.splitlines() if "@main" in line)
    assert _IN_MAIN.findall(main) == names
    body = text[text.index("@main") :].partition("\n  }")[0]
    assert not any(re.search(rf"%arg{i}\b", body) for i in range(len(names)))
    listed = reading.listing("hlo")
    found = [reading.module.instructions[i].name for i in listed.instructions if i is not None]
    assert set(names) <= set(found)
    return names


@pytest.fixture
def new() -> Callable[[], dict[str, list[str]]]:
    """Gives the names of the inputs of the programs compiled since the test began, by their part."""
    first = programs()[-1].id if programs() else 0

    def named() -> dict[str, list[str]]:
        found = [p for p in programs() if p.id > first and p.alive]
        return {p.part: names_of(p) for p in found if p.kind not in ("eager", "engine")}

    return named


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).to("jax")


PARAMETERS = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]
STATISTICS = ["1.running_mean", "1.running_var", "1.num_batches_tracked"]


def under(path: str, names: list[str]) -> set[str]:
    return {f"{path}.{name}" for name in names}


x = torch.ones(2, 3, device="jax")
y = x + 1
table = {"w": [torch.ones(3, device="jax")]}


def test_arguments_globals_closures_and_the_random_key(new: Any) -> None:
    net = mlp()

    @jaxtorch.pure
    def loss(image: Any, *rest: Any, mask: Any = None) -> torch.Tensor:
        noise = torch.rand((), device="jax")
        parts = image["a"][1] + rest[1], net(mask), table["w"][0] * noise
        return sum(part.sum() for part in parts)

    loss({"a": [None, y]}, 0, x * 2, mask=x).backward()
    names = new()
    assert set(names["saving"]) == {
        *("image.a.1", "rest.1", "mask", "table.w.0", "random_key"),
        *under("net", PARAMETERS + STATISTICS),
    }
    assert {"mask", "net.2.weight", "grad_output"} <= set(names["backward"])
    assert any(name.startswith("residual.") for name in names["backward"])


class Holder:
    """An object with a model, whose method and which itself are captured."""

    def __init__(self) -> None:
        self.model = mlp()

    def __call__(self, z: torch.Tensor) -> torch.Tensor:
        return self.model(z).sum()

    def run(self, z: torch.Tensor) -> torch.Tensor:
        return self.model(z).sum()


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: (jaxtorch.pure(mlp()), (x,)), "model"),
        (lambda: (jaxtorch.pure(mlp().forward), (x,)), "model"),
        (lambda: (jaxtorch.pure(Holder()), (x,)), "model"),
        (lambda: (jaxtorch.pure(Holder().run), (x,)), "model"),
        (lambda: (jaxtorch.pure(lambda net, x: net(x)), (mlp(), x)), "net"),
        (lambda: (jaxtorch.pure(lambda nets, x: nets[1](x)), ([mlp(), mlp()], x)), "nets.1"),
        (lambda: (jaxtorch.pure(lambda h, x: h.model(x)), (Holder(), x)), "model"),
        (lambda: (torch.compile(mlp(), backend="jax"), (x,)), "model"),
    ],
    ids=["module", "forward", "object", "method", "argument", "in a list", "attribute", "compile"],
)
@torch.no_grad()
def test_a_module_wherever_it_comes_from(make: Any, path: str, new: Any) -> None:
    function, args = make()
    function(*args)
    names = set(new()[""])
    assert under(path, PARAMETERS + STATISTICS) <= names
    assert len(names) == 10


def test_compile_names_arguments_and_other_tensors(new: Any) -> None:
    net = mlp()
    torch.compile(lambda z, rest: net(z) + rest["b"], backend="jax")(x, {"b": y})
    (names,) = new().values()
    assert "z" in names
    assert under("net", PARAMETERS) <= set(names)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_training_step(groups: int, new: Any) -> None:
    net = mlp()
    parameters = [net[:2].parameters(), net[2:].parameters()]
    adam = torch.optim.Adam(
        [{"params": p} for p in parameters] if groups == 2 else net.parameters()
    )

    @jaxtorch.jit
    def step(images: torch.Tensor) -> torch.Tensor:
        adam.zero_grad(set_to_none=False)
        loss = net(images).square().mean()
        loss.backward()
        adam.step()
        return loss

    for parameter in net[0].parameters():
        parameter.grad = torch.ones_like(parameter)
    step(images=x)
    step(images=x)
    rates = {"adam.lr"} if groups == 1 else {"adam.lr.0", "adam.lr.1"}
    state = {f"adam.{n}.{i}" for n in ("step", "exp_avg", "exp_avg_sq") for i in range(6)}
    gradients = {"net.0.weight.grad", "net.0.bias.grad"}
    names = set(new()[""])
    assert {"images", *rates, *state, *under("net", PARAMETERS + STATISTICS)} <= names
    assert names - gradients == {"images", *rates, *state, *under("net", PARAMETERS + STATISTICS)}


def test_stacked_layers_have_the_range_of_their_numbers(new: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return jaxtorch.scan_layers(self.layers, x)

    f = jaxtorch.pure(Model().to("jax"))
    f(x).sum().backward()
    names = new()
    assert {"x", "model.layers.0-4.weight", "model.layers.0-4.bias"} == set(names["saving"])
    assert "model.layers.0-4.weight" in names["backward"]


@torch.no_grad()
def test_an_eager_scan(new: Any) -> None:
    jaxtorch.scan(lambda c, x: (c + x["a"] + table["w"][0], c), x[0], {"a": x})
    assert set(new()[""]) == {"init", "xs.a", "table.w.0"}


@pytest.mark.parametrize("gradients", [False, True])
def test_lowered_programs(gradients: bool) -> None:
    net, other = mlp(), mlp()
    for model in (net, other):  # the same program: what was compiled first must not name the second
        f = jaxtorch.pure(lambda image: model(image))  # noqa: B023
        lowered = f.lower(x, gradients=gradients)
    expected = ["image", *under("model", PARAMETERS)]
    hlo = lowered.compile().hlo
    for name in [*expected, *(["grad_output"] if gradients else [])]:
        assert re.search(rf"%{re.escape(name)} = .* parameter\(", hlo), name
        assert f"%{name}: tensor" in lowered.stablehlo
    assert "operands_" not in hlo
    assert "operands[" not in hlo
    renamed = jaxtorch.pure(lambda picture: net(picture)).lower(x).compile().hlo
    assert "%picture = " in renamed
    assert "%net.0.weight = " in renamed


def test_names_are_legal_and_distinct() -> None:
    assert distinct(["x", "y", "x", "x_1", "x"]) == ["x", "y", "x_2", "x_1", "x_3"]
    assert readable("self.a['b c'][0].d[\"e\"]") == "self.a.b c[0].d.e"
    assert stacked(["a.0.b", "a.1.b", "a.2.b"]) == "a.0-2.b"
    assert stacked(["a", "b"]) == "a"
    keys = ["b c", "%3", "c", "add", "0", "main", "ü", "a.b", "a[b]"]
    odd = {key: x + i for i, key in enumerate(keys)}
    lowered = jaxtorch.pure(lambda **odd: sum(odd.values())).lower(**odd)
    names = _IN_MAIN.findall(next(s for s in lowered.stablehlo.splitlines() if "@main" in s))
    assert len(set(names)) == len(names) == 9
    assert lowered.compile().hlo.count(" parameter(") >= 9


def test_hlo_of_other_programs_is_left_alone() -> None:
    parameter = '  %Arg_0.1 = f32[] parameter(0), metadata={op_name="y"}'
    text = f"HloModule m\n\nENTRY %main (Arg_0.1: f32[]) -> f32[] {{\n{parameter}\n}}\n"
    assert hlo_with_names(text) == text
    assert hlo_with_names("") == ""


@pytest.mark.parametrize(
    ("magic", "device"), [("%%pure", "jax"), ("%%pure", "cpu"), ("%%jit", "jax")]
)
def test_a_cell(magic: str, device: str, new: Any) -> None:
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "jaxtorch")
    try:
        shell.user_ns["device"] = device
        shell.run_cell(
            "import torch\n"
            "net = torch.nn.Sequential(torch.nn.Linear(3, 1)).to(device)\n"
            "batch = {'x': torch.ones(2, 3, device=device)}"
        ).raise_error()
        with torch.no_grad():
            cell = f"{magic}\nloss = net(batch['x']).sum()"
            shell.run_cell(cell, store_history=True).raise_error()
        (names,) = new().values()
        assert set(names) == {"batch.x", "net.0.weight", "net.0.bias"}
    finally:
        shell.run_line_magic("unload_ext", "jaxtorch")
        torch.set_default_device(None)
