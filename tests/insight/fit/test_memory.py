"""The memory of a program by its schedule, against what XLA allocates; and its kinds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import jaxtorch
from jaxtorch.capture.lowering import Executable
from jaxtorch.insight.fit.liveness import Liveness
from jaxtorch.insight.hlo.module import read_module
from tests.insight.hlo.programs import of_text


def step_of(model: nn.Module) -> Callable[..., object]:
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def mlp() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(256, 256), nn.GELU())))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 32 * 32, 10),
    )  # fmt: skip


def predicted(executable: Executable) -> float:
    """The peak by the schedule, as a share of what XLA allocates."""
    module = read_module(executable.hlo_proto)
    temporaries = Liveness(module, lambda shape: shape.bytes, of_outputs=True).peak.bytes
    memory = executable.memory_analysis()
    held = memory.argument_size_in_bytes
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return (held + temporaries) / (held + outputs + memory.temp_size_in_bytes)


@pytest.mark.parametrize(("model", "shape"), [(mlp, (2048, 256)), (convolutions, (16, 3, 32, 32))])
def test_the_peak_of_a_training_step_is_what_xla_allocates(
    model: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    with torch.device("meta"):
        step = jaxtorch.jit(step_of(model()))
        compiled = step.lower(torch.empty(shape)).compile()
    assert predicted(compiled) == pytest.approx(1, abs=0.1)


def peak_of(body: str, before: str = "") -> tuple[int, set[str]]:
    module = of_text(f"HloModule m, is_scheduled=true\n{before}\nENTRY e {{\n{body}\n}}")
    peak = Liveness(module, lambda shape: shape.bytes).peak
    return peak.bytes, {value.instruction.name for value in peak.values}


def test_a_value_is_held_until_its_last_reader() -> None:
    body = """
    p = f32[1000] parameter(0)
    a = f32[1000,8] broadcast(p), dimensions={0}
    b = f32[1000,8] transpose(a), dimensions={0,1}
    c = f32[1000,8] transpose(b), dimensions={0,1}
    d = f32[1000,8] transpose(c), dimensions={0,1}
    ROOT r = f32[1000,8] copy(d)
    """
    assert peak_of(body)[0] == 2 * 32_000
    longer = body.replace("ROOT r = f32[1000,8] copy(d)", "ROOT r = f32[1000,8] add(d, a)")
    assert peak_of(longer)[0] == 3 * 32_000


def test_elementwise_results_take_the_place_of_a_last_read_operand() -> None:
    body = """
    p = f32[1000] parameter(0)
    a = f32[1000] sine(p)
    b = f32[1000] cosine(a)
    ROOT c = f32[1000] tan(b)
    """
    assert peak_of(body)[0] == 4000


def test_what_lives_in_a_loop_is_held_beside_what_lives_outside() -> None:
    loop = """
    body {
      s = (s32[], f32[1000]) parameter(0)
      i = s32[] get-tuple-element(s), index=0
      x = f32[1000] get-tuple-element(s), index=1
      one = s32[] constant(1)
      j = s32[] add(i, one)
      wide = f32[1000,16] broadcast(x), dimensions={0}
      turned = f32[16,1000] transpose(wide), dimensions={1,0}
      zero = f32[] constant(0)
      y = f32[1000] reduce(turned, zero), dimensions={0}, to_apply=add
      ROOT t = (s32[], f32[1000]) tuple(j, y)
    }
    condition {
      s = (s32[], f32[1000]) parameter(0)
      i = s32[] get-tuple-element(s), index=0
      n = s32[] constant(7)
      ROOT less = pred[] compare(i, n), direction=LT
    }
    """
    add = "add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }"
    body = """
    p = f32[1000] parameter(0)
    kept = f32[1000,4] broadcast(p), dimensions={0}
    zero = s32[] constant(0)
    start = f32[1000] sine(p)
    t = (s32[], f32[1000]) tuple(zero, start)
    w = (s32[], f32[1000]) while(t), condition=condition, body=body
    y = f32[1000] get-tuple-element(w), index=1
    r = f32[1000,4] broadcast(y), dimensions={0}
    ROOT s = f32[1000,4] add(r, kept)
    """
    peak, names = peak_of(body, add + loop)
    assert names >= {"kept", "start", "wide", "turned"}
    assert peak == pytest.approx(16_000 + 4000 + 2 * 64_000, abs=16)


def test_the_kinds_of_a_training_step_add_up() -> None:
    with torch.device("meta"):
        model = mlp()
        step = jaxtorch.jit(step_of(model))
        compiled = step.lower(torch.empty(512, 256)).compile()
    fit = jaxtorch.fit(compiled)
    memory = compiled.memory_analysis()
    kinds = {row.kind: row for row in fit.memory}
    size = sum(p.numel() * 4 for p in model.parameters())
    assert kinds["parameters"].bytes == kinds["parameters"].donated == size
    # Two moments of each parameter, a count of steps for each, and the learning rate.
    assert kinds["optimizer state"].bytes == 2 * size + 4 * (6 + 1)
    assert kinds["inputs"].bytes == 512 * 256 * 4
    assert kinds["gradients"].returned == size  # left in `.grad`
    assert any(".grad" in sentence for sentence in fit.findings)
    # The inputs of three layers at least, which the backward pass reads.
    assert kinds["activations"].bytes >= 3 * 512 * 256 * 4
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    assert fit.used == memory.argument_size_in_bytes + outputs + memory.temp_size_in_bytes
    assert fit.fits
    assert fit.hbm is None
    assert fit.time is None  # no rates of this machine are known
    assert fit.verdict.startswith("Takes ")  # and not how much memory it has
    assert "fit" not in fit.verdict.lower()
    assert str(fit).splitlines() == [fit.verdict, *fit.findings]
    assert repr(fit) == f"<Fit: {fit.verdict}>"
    parts = {m.path: m.bytes for m in fit.modules}
    assert parts["model.0"] == (256 * 256 + 256) * 4


@pytest.mark.parametrize(
    "program",
    [jaxtorch.jit(lambda x: x), jaxtorch.pure(lambda x: x), nn.Linear(2, 2), None],
    ids=["jit", "pure", "module", "None"],
)
def test_a_function_that_is_not_lowered_is_an_error_that_says_what_to_write(
    program: object,
) -> None:
    with pytest.raises(TypeError, match=r"fit takes what `lower\(...\)`.*write `jaxtorch.fit\("):
        jaxtorch.fit(program)  # type: ignore[arg-type]
