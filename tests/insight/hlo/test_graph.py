"""Graphs around an instruction and of a whole program: their nodes, edges and sizes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch
from jax import lax

import jaxtorch
from jaxtorch.insight.hlo.costs import Costs
from jaxtorch.insight.hlo.graph import MOST, Graph, folded, neighbourhood
from jaxtorch.insight.hlo.reading import Reading
from jaxtorch.insight.hlo.scopes import scope_of
from jaxtorch.insight.programs import programs

from .programs import array, of_text, optimized

CHAIN = """
HloModule chain
ENTRY main {{
  n0 = f32[4] parameter(0)
{body}
}}
"""


def chain(length: int) -> Costs:
    """n0 -> n1 -> ... -> n<length>."""
    body = "\n".join(f"  n{i} = f32[4] sine(n{i - 1})" for i in range(1, length))
    return Costs(
        of_text(CHAIN.format(body=f"{body}\n  ROOT n{length} = f32[4] sine(n{length - 1})"))
    )


def labels(graph: Graph) -> set[tuple[str, str]]:
    """The edges by the names of their ends."""
    names = {n.id: n.label for n in graph.nodes}
    return {(names[a], names[b]) for a, b in graph.edges}


def test_the_neighbourhood_is_what_is_so_many_steps_away() -> None:
    costs = chain(9)
    graph = neighbourhood(costs, costs.module.named("n5"), hops=2)
    assert {n.label: n.distance for n in graph.nodes} == {
        "n3": 2,
        "n4": 1,
        "n5": 0,
        "n6": 1,
        "n7": 2,
    }
    assert labels(graph) == {("n3", "n4"), ("n4", "n5"), ("n5", "n6"), ("n6", "n7")}
    assert graph.cut
    whole = neighbourhood(costs, costs.module.named("n5"), hops=20)
    assert len(whole.nodes) == 10
    assert not whole.cut


def test_a_neighbourhood_has_a_largest_size_and_the_nearest_come_first() -> None:
    costs = chain(500)
    graph = neighbourhood(costs, costs.module.named("n250"), hops=1000)
    assert len(graph.nodes) == MOST
    assert graph.cut
    assert {n.distance for n in graph.nodes} == set(range(MOST // 2 + 1))


def test_a_fusion_shows_what_it_is_made_of() -> None:
    module, *_ = optimized(lambda x: jnp.sin(x) * 2 + 1, array(64))
    fusion = next(i for i in module.instructions.values() if i.opcode == "fusion")
    graph = neighbourhood(Costs(module), fusion)
    details = {n.detail for n in graph.nodes}
    assert {"sine f32[64]", "multiply f32[64]", "add f32[64]"} <= details
    inner = neighbourhood(
        Costs(module), next(i for i in module.instructions.values() if i.opcode == "sine")
    )
    assert "multiply f32[64]" in {n.detail for n in inner.nodes}


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.sum()


def test_a_model_is_folded_by_module_path() -> None:
    captured = jaxtorch.pure(Net().to("jax"), name="folded")
    with torch.no_grad():
        captured(torch.randn(4, 8, device="jax"))
    reading = Reading([p for p in programs() if p.name == "folded"][-1])
    graph = folded(reading.costs)
    nodes = {n.label: n for n in graph.nodes}
    for i in range(2):
        for layer in ("up", "down"):
            work = nodes[f"Net/blocks.{i}/{layer}"].cost.flops
            # the product, and its bias where that is not fused into what follows
            assert 2 * 4 * 8 * 32 <= work <= 2 * 4 * 8 * 32 + 2 * 4 * 32
        assert nodes[f"Net/blocks.{i}"].cost.transcendentals == 4 * 32
    flow = labels(graph)
    assert ("Net/blocks.0/down", "Net/blocks.0/up") not in flow
    assert sum(n.cost.flops for n in graph.nodes) == reading.costs.total.flops
    small = folded(reading.costs, depth=1)
    assert {n.label for n in small.nodes} <= {"Net", "(outside modules)"}
    assert small.cut


def test_the_backward_pass_is_beside_the_forward_pass() -> None:
    def f(w: jax.Array, x: jax.Array) -> jax.Array:
        with jax.named_scope("layer"):
            y = jnp.tanh(x @ w)
        return y.sum()

    module, *_ = optimized(jax.grad(f), array(8, 8), array(8, 8))
    nodes = {n.label: n for n in folded(Costs(module)).nodes}
    assert nodes["layer"].cost.transcendentals == 64
    assert nodes["backward layer"].cost.flops >= 2 * 8**3


def test_what_flows_through_a_tuple_and_a_loop_is_an_edge() -> None:
    def f(x: jax.Array, w: jax.Array) -> jax.Array:
        with jax.named_scope("before"):
            y = x @ w
        with jax.named_scope("loop"):
            y = lax.fori_loop(0, 5, lambda i, c: jnp.tanh(c @ w), y)
        with jax.named_scope("after"):
            return y @ w

    module, *_ = optimized(f, array(8, 8), array(8, 8))
    assert ("loop", "after") in labels(folded(Costs(module)))


def test_a_folded_program_has_a_largest_size_too() -> None:
    def f(x: jax.Array) -> jax.Array:
        for i in range(120):
            with jax.named_scope(f"block{i % 4}"), jax.named_scope(f"part{i}"):
                x = x @ x
        return x

    module, *_ = optimized(f, array(4, 4))
    graph = folded(Costs(module), repeats=True)
    assert {n.label for n in graph.nodes} <= {f"block{i}" for i in range(4)} | {"(outside modules)"}
    assert graph.cut
    assert len(folded(Costs(module), depth=2, repeats=True).nodes) == MOST


class Deep(torch.nn.Module):
    """Layers of two kinds in turn, and a head of layers that differ."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleDict(
                {"up": torch.nn.Linear(8, 16), "down": torch.nn.Linear(16, 8)}
                | ({"norm": torch.nn.LayerNorm(8)} if i % 2 else {})
            )
            for i in range(layers)
        )
        self.head = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer["down"](torch.relu(layer["up"](x)))
            if "norm" in layer:
                x = layer["norm"](x)
        return self.head(x)


@pytest.mark.parametrize(("layers", "repeats"), [(16, False), (16, True), (4, False)])
def test_repeated_layers_are_one_node_each_kind(layers: int, repeats: bool) -> None:
    captured = jaxtorch.pure(Deep(layers).to("jax"), name="deep")
    with torch.no_grad():
        captured(torch.randn(4, 8, device="jax"))
    costs = Reading([p for p in programs() if p.name == "deep"][-1]).costs
    graph = folded(costs, repeats=repeats)
    counts = {n.label: n.count for n in graph.nodes}
    assert sum(n.cost.flops for n in graph.nodes) == costs.total.flops  # nothing is lost
    if layers == 4 or repeats:  # two of a kind do not count as a repetition
        assert {f"Deep/layers.{i}.up" for i in range(layers)} <= counts.keys()
        assert set(counts.values()) == {1}
        return
    even, odd = "Deep/layers.0,2,4,…,14", "Deep/layers.1,3,5,…,15"
    kinds = {f"{even}.up", f"{even}.down", f"{odd}.up", f"{odd}.down", f"{odd}.norm"}
    assert {label: n for label, n in counts.items() if n > 1} == dict.fromkeys(kinds, 8)
    assert "Deep/head/0" in counts  # its layers differ
    (node,) = [n for n in graph.nodes if n.label == f"{odd}.norm"]
    # The node of equal layers has as many instructions as their own nodes together.
    own = [n.detail for n in folded(costs, repeats=True).nodes if n.label.endswith(".norm")]
    number = sum(int(detail.partition(" ")[0]) for detail in own)
    assert len(own) == 8
    assert node.detail == f"{number} instructions in 8 layers"


@pytest.mark.parametrize(
    ("op_name", "path", "backward", "primitive"),
    [
        ("jit(f)/add", (), False, "add"),
        (
            "jit(f)/jvp(GPT)/blocks.0/attention/dot_general",
            ("GPT", "blocks.0", "attention"),
            False,
            "dot_general",
        ),
        ("jit(f)/transpose(jvp(GPT))/blocks.0/mul", ("GPT", "blocks.0"), True, "mul"),
        ("jit(step)/transpose(GPT)/head/mul", ("GPT", "head"), True, "mul"),
        ("jit(f)/jvp()/while/body/closed_call/tanh", (), False, "tanh"),
        ("jit(f)/Net/jit(_where)/select_n", ("Net",), False, "select_n"),
        # A derivative inside a scope repeats the scopes around it, here twice.
        (
            "jit(f)/transpose(GPT)/0/transpose(transpose(GPT))/0/jvp(transpose(GPT))/0/jvp()/mul",
            ("GPT", "0"),
            True,
            "mul",
        ),
        ("jit(f)/transpose(GPT)/0/jvp(transpose(GPT))/0/1/mul", ("GPT", "0", "1"), True, "mul"),
        # Layers of the same name are not repetitions.
        ("jit(f)/jvp(GPT)/0/0/mul", ("GPT", "0", "0"), False, "mul"),
        ("jit(f)/0/0/jvp()/0/mul", ("0", "0", "0"), False, "mul"),
        # XLA joined two instructions.
        ("jit(f)/GPT/mul;jit(f)/GPT/head/max", ("GPT",), False, "mul"),
        ("jit(a(b)/c)/x(y)/sin", ("x(y)",), False, "sin"),
        ("jit(f)/unbalanced)/sin", ("unbalanced)",), False, "sin"),
        ("", (), False, ""),
    ],
)
def test_scopes(op_name: str, path: tuple[str, ...], backward: bool, primitive: str) -> None:
    assert scope_of(op_name) == (path, backward, primitive)
