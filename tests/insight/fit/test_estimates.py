"""The estimates of the fit report against formulas, on programs written as HLO."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxtorch.capture.tpu_chips import Chip, chip_of
from jaxtorch.insight.fit.collectives import Collectives
from jaxtorch.insight.fit.padding import in_space, padded_dimensions, stored_bytes
from jaxtorch.insight.fit.roofline import HBM, MATRIX, Estimate
from jaxtorch.insight.hlo.module import Module
from tests.insight.hlo.programs import array, of_text, optimized

# https://docs.cloud.google.com/tpu/docs/v5e: bfloat16 FLOP/s, bytes a second of HBM, of all links in both directions.
FLOPS, BANDWIDTH, LINKS = 197e12, 819e9, 400e9
V5E = chip_of("v5e:1x1")
MIB = 2**20


def estimate(module: Module, chip: Chip = V5E, topology: tuple[int, ...] = (1, 1)) -> Estimate:
    count = 1
    for length in topology:
        count *= length
    return Estimate(module, chip, topology, count)


def entry(body: str, before: str = "") -> Module:
    return of_text(f"HloModule m, is_scheduled=true\n{before}\nENTRY e {{\n{body}\n}}")


@pytest.mark.parametrize(
    ("shape", "padded", "stored"),
    [
        # XLA: "Tiled layout". The example of the documentation: 130 columns take two tiles of 128.
        ("f32[8,130]{1,0:T(8,128)}", ((130, 256),), 4 * 8 * 256),
        ("bf16[130,2048]{1,0:T(8,128)(2,1)}", ((130, 136),), 2 * 136 * 2048),
        ("bf16[130,2048]{0,1:T(8,128)(2,1)}", ((130, 256),), 2 * 256 * 2048),
        ("f32[16,512]{1,0:T(8,128)}", (), 4 * 16 * 512),
        ("f32[3,5,7]{2,1,0:T(8,128)}", ((5, 8), (7, 128)), 4 * 3 * 8 * 128),
        ("bf16[130]{0:T(256)(128)(2,1)}", ((130, 256),), 2 * 256),
        ("f32[]{:T(128)}", (), 4 * 128),
        ("f32[8,130]{1,0}", (), 4 * 8 * 130),
    ],
)
def test_an_array_is_stored_in_whole_tiles(
    shape: str, padded: tuple[tuple[int, int], ...], stored: int
) -> None:
    module = entry(f"ROOT p = {shape} parameter(0)")
    found = module.named("p").shape
    assert padded_dimensions(found) == padded
    assert stored_bytes(found) == stored


def test_the_parts_of_a_tuple_lie_in_memories_of_their_own() -> None:
    module = entry(
        "p = f32[256]{0} parameter(0)\n"
        "q = f32[512]{0:S(1)} copy(p)\n"
        "ROOT t = (f32[256]{0}, f32[512]{0:S(1)}) tuple(p, q)"
    )  # fmt: skip
    shape = module.named("t").shape
    assert (in_space(shape), in_space(shape, 1)) == (1024, 2048)


PRODUCT = """
a = {dtype}[4096,4096] parameter(0)
b = {dtype}[4096,4096] parameter(1)
ROOT r = {dtype}[4096,4096] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}{more}
"""


@pytest.mark.parametrize(
    ("dtype", "precision", "passes", "peak"),
    [
        ("bf16", "", 1, FLOPS),
        ("bf16", "highest", 1, FLOPS),
        ("f32", "", 1, FLOPS),
        ("f32", "high", 3, FLOPS),
        ("f32", "highest", 6, FLOPS),
        ("s8", "", 1, 393e12),
    ],
)
def test_a_product_takes_its_passes_of_the_matrix_unit(
    dtype: str, precision: str, passes: int, peak: float
) -> None:
    more = f", operand_precision={{{precision},{precision}}}" if precision else ""
    found = estimate(entry(PRODUCT.format(dtype=dtype, more=more)))
    flops = 2 * 4096**3
    (busy,) = (b for b in found.busy.values() if b.flops)
    assert busy.flops == flops
    assert busy.multiplied == passes * flops
    assert found.seconds == pytest.approx(passes * flops / peak)
    assert busy.limits == {MATRIX: found.seconds}


def test_a_program_that_only_moves_is_bound_by_memory() -> None:
    module = entry("p = f32[1024,1024] parameter(0)\nROOT n = f32[1024,1024] negate(p)")
    found = estimate(module)
    assert found.seconds == pytest.approx(2 * 4 * MIB / BANDWIDTH)
    assert found.busy[module.named("n").id].limits == {HBM: found.seconds}


def test_what_lies_in_vmem_costs_no_memory() -> None:
    module = entry(
        "p = f32[1024,1024]{1,0} parameter(0)\n"
        "n = f32[1024,1024]{1,0:S(1)} negate(p)\n"
        "ROOT m = f32[1024,1024]{1,0} negate(n)"
    )  # fmt: skip
    assert estimate(module).seconds == pytest.approx(2 * 4 * MIB / BANDWIDTH)


def test_an_early_copy_runs_beside_a_product() -> None:
    body = """
    a = bf16[4096,4096]{1,0:S(1)} parameter(0)
    p = f32[1024,1024]{1,0} parameter(1)
    s = (f32[1024,1024]{1,0:S(1)}, f32[1024,1024]{1,0}, u32[]) copy-start(p)
    r = bf16[4096,4096]{1,0:S(1)} dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    d = f32[1024,1024]{1,0:S(1)} copy-done(s)
    ROOT t = (bf16[4096,4096]{1,0:S(1)}, f32[1024,1024]{1,0:S(1)}) tuple(r, d)
    """
    product, copy = 2 * 4096**3 / FLOPS, 4 * MIB / BANDWIDTH
    found = estimate(entry(body))
    assert found.seconds == pytest.approx(max(product, copy))
    late = body.replace("dot(a, a)", "dot(d2, a)")
    late = late.replace("    r =", "    e = f32[1024,1024]{1,0:S(1)} copy-done(s)\n    r =", 1)
    late = late.replace("    d = f32[1024,1024]{1,0:S(1)} copy-done(s)\n", "")
    late = late.replace("tuple(r, d)", "tuple(r, e)").replace("dot(d2, a)", "dot(a, a)")
    assert estimate(entry(late)).seconds == pytest.approx(product + copy)


LOOP = """
body {
  s = (s32[], bf16[1024,1024]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = bf16[1024,1024] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = bf16[1024,1024] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (s32[], bf16[1024,1024]) tuple(j, y)
}
condition {
  s = (s32[], bf16[1024,1024]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(7)
  ROOT less = pred[] compare(i, n), direction=LT
}
"""


def test_the_body_of_a_loop_counts_as_often_as_it_runs() -> None:
    module = entry(
        "zero = s32[] constant(0)\n"
        "x = bf16[1024,1024] parameter(0)\n"
        "t = (s32[], bf16[1024,1024]) tuple(zero, x)\n"
        "ROOT w = (s32[], bf16[1024,1024]) while(t), condition=condition, body=body",
        LOOP,
    )
    found = estimate(module)
    assert sum(busy.flops for busy in found.busy.values()) == 7 * 2 * 1024**3
    # Of each product, memory is the limit: three arrays of 2 MiB.
    assert found.seconds >= 7 * 3 * 2 * MIB / BANDWIDTH
    assert found.seconds == pytest.approx(sum(busy.seconds for busy in found.busy.values()))


BRANCHES = """
wide {
  x = bf16[1024,1024] parameter(0)
  ROOT y = bf16[1024,1024] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
plain {
  x = bf16[1024,1024] parameter(0)
  ROOT y = bf16[1024,1024] negate(x)
}
same {
  ROOT x = bf16[1024,1024] parameter(0)
}
"""


@pytest.mark.parametrize(
    ("branches", "flops", "seconds"),
    [
        (("wide", "plain"), 2 * 1024**3, 2 * 1024**3 / FLOPS),
        (("plain", "wide"), 2 * 1024**3, 2 * 1024**3 / FLOPS),
        (("same", "plain"), 0, 2 * 2 * MIB / BANDWIDTH),
    ],
)
def test_of_several_branches_the_slowest_counts_alone(
    branches: tuple[str, str], flops: int, seconds: float
) -> None:
    module = entry(
        "i = s32[] parameter(0)\n"
        "x = bf16[1024,1024] parameter(1)\n"
        "ROOT c = bf16[1024,1024] conditional(i, x, x), "
        f"branch_computations={{{', '.join(branches)}}}",
        BRANCHES,
    )
    found = estimate(module)
    assert sum(busy.flops for busy in found.busy.values()) == flops
    assert found.seconds == pytest.approx(seconds)
    assert sum(busy.seconds for busy in found.busy.values()) == pytest.approx(seconds)
    limits = [busy.limits for busy in found.busy.values()]
    assert sum(sum(one.values()) for one in limits) == pytest.approx(seconds)


@pytest.mark.parametrize(("remat", "products"), [(False, 3), (True, 4)])
def test_operations_of_gradients_through_a_loop_are_exact(remat: bool, products: int) -> None:
    """Forward, the gradients of weight and input, and with rematerialization the forward product once more."""
    layers, batch, width = 5, 64, 32

    def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(h @ w), None

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(jax.checkpoint(layer) if remat else layer, x, weights)[0].sum()

    arguments = array(layers, width, width), array(batch, width)
    found = estimate(optimized(jax.grad(loss), *arguments)[0])
    flops = sum(busy.flops for busy in found.busy.values())
    assert flops == products * layers * 2 * batch * width * width


def test_a_loop_reads_only_its_layer_of_a_stack() -> None:
    """Also where the slice is in a fusion of the fusion, as the TPU's compiler writes it."""
    fused = """
    inner {
      w = f32[32,1024,1024] parameter(0)
      i = s32[] parameter(1)
      zero = s32[] constant(0)
      s = f32[1,1024,1024] dynamic-slice(w, i, zero, zero), dynamic_slice_sizes={1,1024,1024}
      ROOT b = f32[1024,1024] bitcast(s)
    }
    outer {
      w = f32[32,1024,1024] parameter(0)
      i = s32[] parameter(1)
      x = f32[1024,1024] parameter(2)
      m = f32[1024,1024] fusion(w, i), kind=kLoop, calls=inner
      ROOT a = f32[1024,1024] add(m, x)
    }
    """
    module = entry(
        "w = f32[32,1024,1024] parameter(0)\n"
        "i = s32[] parameter(1)\n"
        "x = f32[1024,1024] parameter(2)\n"
        "ROOT f = f32[1024,1024] fusion(w, i, x), kind=kLoop, calls=outer",
        fused,
    )
    assert estimate(module).seconds == pytest.approx(3 * 4 * MIB / BANDWIDTH, rel=1e-3)


ADD = "add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }"
ALL_REDUCE = """
p = f32[1024,1024] parameter(0)
ROOT r = f32[1024,1024] all-reduce(p), channel_id=1, replica_groups={groups}, use_global_device_ids=true, to_apply=add
"""


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", 4),
        ("[2,4]<=[8]", 4),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("{}", 8),
    ],
)
def test_an_all_reduce_goes_around_the_ring_twice(groups: str, size: int) -> None:
    module = entry(ALL_REDUCE.replace("{groups}", groups), ADD)
    found = Collectives(module, V5E, (2, 4), 8).of(module.named("r"))
    assert found is not None
    assert (found.kind, found.chips) == ("all-reduce", size)
    assert found.bytes == pytest.approx(2 * (size - 1) / size * 4 * MIB)


@pytest.mark.parametrize(
    ("opcode", "operand", "result", "more", "sent"),
    [
        ("all-gather", "f32[256]", "f32[1024]", "dimensions={0}", 3 * 1024),
        ("reduce-scatter", "f32[1024]", "f32[256]", "dimensions={0}, to_apply=add", 3 * 1024),
        ("all-to-all", "f32[1024]", "f32[1024]", "dimensions={0}", 3 * 1024),
    ],
)
def test_a_collective_sends_what_the_others_lack(
    opcode: str, operand: str, result: str, more: str, sent: int
) -> None:
    body = f"p = {operand} parameter(0)\nROOT r = {result} {opcode}(p), channel_id=1, replica_groups=[1,4]<=[4], {more}"
    module = entry(body, ADD)
    found = Collectives(module, V5E, (2, 2), 4).of(module.named("r"))
    assert found is not None
    assert found.bytes == sent


# libtpu writes a reduce-scatter as an all-reduce of which each chip takes its part.
SCATTER = """
ars {
  input = f32[1024,512] parameter(0)
  r = f32[1024,512] all-reduce(input), channel_id=5, replica_groups={{0,1,2,3}}, to_apply=add
  zero = u32[] constant(0)
  n = u32[] constant(128)
  id = u32[] partition-id()
  first = u32[] multiply(id, n)
  ROOT d = f32[1024,128] dynamic-slice(SOURCE, zero, first), dynamic_slice_sizes={1024,128}
}
"""


@pytest.mark.parametrize(("source", "shaped"), [("r", ""), ("b", "b = f32[1024,512] bitcast(r)\n")])
def test_a_reduce_scatter_in_a_fusion_is_one(source: str, shaped: str) -> None:
    fused = SCATTER.replace("ROOT d", f"{shaped}ROOT d").replace("SOURCE", source)
    module = entry(
        "p = f32[1024,512] parameter(0)\nROOT f = f32[1024,128] fusion(p), kind=kCustom, calls=ars",
        ADD + fused,
    )
    found = estimate(module, V5E, (2, 2))
    scatter = 3 / 4 * 2 * MIB / (LINKS / 4)
    assert found.seconds == pytest.approx(scatter)
    busy = found.busy[module.named("f").id]
    assert busy.limits == {"reduce-scatter": pytest.approx(scatter)}


def test_the_fusions_of_one_collective_count_it_once() -> None:
    """libtpu gives the parts of a collective that runs beside other work one channel."""
    part = """
    PART {
      p = f32[1024,512] parameter(0)
      ROOT r = f32[1024,512] all-reduce(p), channel_id=7, to_apply=add
    }
    """
    names = {"async-collective-start": "s", "fusion.1": "m", "async-collective-done": "d"}
    before = ADD + "".join(part.replace("PART", name) for name in names.values())
    body, last = "p = f32[1024,512] parameter(0)\n", "p"
    for name, called in names.items():
        root = "ROOT " * name.endswith("done")
        body += f"{root}{name} = f32[1024,512] fusion({last}), kind=kCustom, calls={called}\n"
        last = name
    module = entry(body, before)
    collectives = Collectives(module, V5E, (2, 2), 4)
    found = [collectives.of(module.named(name)) for name in names]
    assert [one is None for one in found] == [False, True, True]
    assert found[0] is not None
    assert found[0].bytes == 2 * 3 / 4 * 2 * MIB


def test_a_collective_and_a_product_in_one_fusion_both_count() -> None:
    both = """
    both {
      p = f32[1024,512] parameter(0)
      a = bf16[4096,4096] parameter(1)
      r = f32[1024,512] all-reduce(p), channel_id=7, to_apply=add
      d = bf16[4096,4096] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      ROOT t = (f32[1024,512], bf16[4096,4096]) tuple(r, d)
    }
    """
    module = entry(
        "p = f32[1024,512] parameter(0)\na = bf16[4096,4096] parameter(1)\n"
        "ROOT f = (f32[1024,512], bf16[4096,4096]) fusion(p, a), kind=kCustom, calls=both",
        ADD + both,
    )
    found = estimate(module, V5E, (2, 2))
    units = found.busy[module.named("f").id].units
    assert units[MATRIX] == pytest.approx(2 * 4096**3 / FLOPS)
    assert units["all-reduce"] == pytest.approx(2 * 3 / 4 * 2 * MIB / (LINKS / 4))
    assert found.seconds == pytest.approx(max(units.values()))


@pytest.mark.parametrize(
    ("target", "group", "bandwidth"),
    [
        # A v5e has four links, two along each axis; the published figure is of all, both directions. Only an axis of 16
        # closes to a ring. A v5p has six links, and closes along axes that are a multiple of 4.
        ("v5e:16x16", 16, LINKS / 4),
        ("v5e:16x16", 256, LINKS / 2),
        ("v5e:4x4", 4, LINKS / 8),
        ("v5e:2x2", 4, LINKS / 4),
        ("v5p:8x8x8", 8, 1200e9 / 6),
        ("v5p:8x8x8", 512, 1200e9 / 2),
    ],
)
def test_a_group_uses_the_axes_that_it_needs(target: str, group: int, bandwidth: float) -> None:
    topology = [int(n) for n in target.partition(":")[2].split("x")]
    collectives = Collectives(entry("ROOT p = f32[] parameter(0)"), chip_of(target), topology, 1)
    assert collectives.bandwidth(group) == pytest.approx(bandwidth)


def test_a_collective_that_starts_early_runs_beside_a_product() -> None:
    body = """
    a = bf16[4096,4096] parameter(0)
    p = f32[1048576] parameter(1)
    s = (f32[1048576], f32[4194304]) all-gather-start(p), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}
    r = bf16[4096,4096] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    d = f32[4194304] all-gather-done(s)
    ROOT t = (bf16[4096,4096], f32[4194304]) tuple(r, d)
    """
    module = entry(body)
    found = estimate(module, V5E, (2, 2))
    product, gather = 2 * 4096**3 / FLOPS, 3 * 4 * MIB / (LINKS / 4)
    assert found.seconds == pytest.approx(max(product, gather))
    waited = found.busy[module.named("d").id].limits
    assert waited.get("all-gather", 0.0) == pytest.approx(max(0.0, gather - product))


def test_permutations_use_the_links_of_one_direction() -> None:
    body = """
    p = f32[1048576] parameter(0)
    a = f32[1048576] collective-permute(p), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
    ROOT t = (f32[1048576]) tuple(a)
    """
    found = estimate(entry(body), V5E, (4, 4))
    assert found.seconds == pytest.approx(
        4 * MIB / (LINKS / 8)
    )  # four links, each in two directions


def test_waiting_for_busy_links_counts_for_what_uses_them() -> None:
    body = """
    p = f32[1048576] parameter(0)
    q = f32[256] parameter(1)
    s = (f32[1048576], f32[4194304]) all-gather-start(p), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}
    r = f32[256] all-reduce(q), channel_id=2, replica_groups=[1,4]<=[4], to_apply=add
    d = f32[4194304] all-gather-done(s)
    ROOT t = (f32[256], f32[4194304]) tuple(r, d)
    """
    module = entry(body, ADD)
    found = estimate(module, V5E, (2, 2))
    gather, reduce = 3 * 4 * MIB / (LINKS / 4), 2 * 3 / 4 * 1024 / (LINKS / 4)
    limits = found.busy[module.named("r").id].limits
    assert limits["all-gather"] == pytest.approx(gather)
    assert limits["all-reduce"] == pytest.approx(reduce)
    assert found.seconds == pytest.approx(gather + reduce)


def test_an_early_slice_reads_only_the_slice() -> None:
    wrapped = """
    wrapped {
      w = f32[32,1024,1024]{2,1,0} parameter(0)
      ROOT s = f32[1,1024,1024]{2,1,0:S(1)} slice(w), slice={[3:4], [0:1024], [0:1024]}
    }
    """
    body = """
    w = f32[32,1024,1024]{2,1,0} parameter(0)
    a = bf16[4096,4096]{1,0:S(1)} parameter(1)
    s = ((f32[32,1024,1024]{2,1,0}), f32[1,1024,1024]{2,1,0:S(1)}, u32[]) async-start(w), calls=wrapped
    r = bf16[4096,4096]{1,0:S(1)} dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    d = f32[1,1024,1024]{2,1,0:S(1)} async-done(s)
    ROOT t = (bf16[4096,4096]{1,0:S(1)}, f32[1,1024,1024]{2,1,0:S(1)}) tuple(r, d)
    """
    found = estimate(entry(body, wrapped))
    product, copy = 2 * 4096**3 / FLOPS, 4 * MIB / BANDWIDTH
    assert found.seconds == pytest.approx(max(product, copy))
    assert sum(b.bytes for b in found.busy.values()) == 4 * MIB


KERNEL = """\
offsets = s32[4] parameter(0)
a = {dtype}[4096,4096] parameter(1)
ROOT k = {dtype}[4096,4096] custom-call(offsets, a), custom_call_target="tpu_custom_call", \
backend_config="{{\\"custom_call_config\\":{{\\"body\\":\\"a\\"{cost}}}}}\""""
COST = ',\\"cost_estimate\\":{\\"flops\\":\\"1000000000000\\",\\"transcendentals\\":\\"0\\"}'


@pytest.mark.parametrize(
    ("dtype", "cost", "flops", "peak"),
    [("bf16", COST, 1e12, FLOPS), ("s8", COST, 1e12, 393e12), ("bf16", "", 0.0, FLOPS)],
)
def test_a_kernel_counts_the_operations_that_it_states(
    dtype: str, cost: str, flops: float, peak: float
) -> None:
    found = estimate(entry(KERNEL.format(dtype=dtype, cost=cost)))
    (busy,) = (b for b in found.busy.values() if b.bytes)
    assert busy.flops == busy.multiplied == flops
    assert busy.units.get(MATRIX, 0.0) == pytest.approx(flops / peak)
    assert bool(found.costs.unknown) == (not flops)
