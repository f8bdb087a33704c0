"""`plan` with small models, compiled by the TPU's own compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from jax.sharding import PartitionSpec as P
from torch import nn

import jaxtorch
from jaxtorch.capture.jit import Jit
from jaxtorch.capture.tpu import CompileError
from jaxtorch.insight import plan as plan_module
from jaxtorch.insight.plan import Choice, Plan, divided
from tests.libtpu import needs_libtpu


def step_of(width: int) -> tuple[Jit, torch.Tensor]:
    with torch.device("meta"):
        model = nn.Sequential(
            nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        )
        x = torch.empty(64, width)
    optimizer = torch.optim.AdamW(model.parameters())

    @jaxtorch.jit
    def step(x: torch.Tensor) -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, x


@needs_libtpu
def test_memory_falls_with_the_chips() -> None:
    step, x = step_of(512)
    result = jaxtorch.plan(step, x, chips=["v5e:1x1", "v5e:2x2"])
    one, four = result.choices
    assert one.report is not None
    assert four.report is not None
    assert (one.mesh, four.mesh) == ({"data": 1}, {"data": 4})
    assert one.fits
    assert four.fits
    assert four.report.used < one.report.used
    for choice in (one, four):
        assert choice.seconds is not None
        assert choice.report is not None
        assert choice.chip_seconds == choice.seconds * choice.report.devices
    assert result.best in result.choices
    heading, *rows = str(result).splitlines()
    assert heading.split("  ")[0] == "chips"
    assert [row.split()[:3] for row in rows] == [
        ["v5e:1x1", "data=1", "yes"],
        ["v5e:2x2", "data=4", "yes"],
    ]
    assert all(row.count("~") == 2 for row in rows)  # both times are marked as estimates
    assert repr(result) == str(result)


@needs_libtpu
def test_a_model_that_one_chip_cannot_hold() -> None:
    step, x = step_of(32768)  # two weights of 4 GiB, with gradients and two states each
    (choice,) = jaxtorch.plan(step, x, chips=["v5e:1x1"]).choices
    assert not choice.fits
    assert choice.seconds is None
    assert choice.chip_seconds is None
    assert "~" not in str(Plan((choice,)))
    assert str(Plan((choice,))).splitlines()[1].split()[:3] == ["v5e:1x1", "data=1", "no"]


def test_a_rejected_program_is_a_row_with_its_reason_below() -> None:
    lines = str(Plan((Choice("v5e:1x1", {"data": 1}, None, "the compiler rejects it"),)))
    assert lines.splitlines()[1].split() == ["v5e:1x1", "data=1", "rejected"]
    assert lines.splitlines()[2] == "v5e:1x1: the compiler rejects it"


@pytest.mark.parametrize(
    ("chips", "meshes", "said"),
    [
        (["v5e:1x1", "v5e:3x7"], "auto", "no topology 3x7"),
        (["v5e:1x1", "nonsense"], "auto", "not 'nonsense'"),
        (["v5e:1x1", "v5e:2x2"], {"v5e:1x1": {"data": 1}}, "no mesh for v5e:2x2"),
        (["v5e:1x1", "v5e:2x2"], {"v5e:1x1": {"data": 1}, "v5e:2x2": {"data": 3}}, "3"),
        ("v5e:3x7", "auto", "no topology 3x7"),
        (["v5e:1x1"], None, "'auto' or has a mesh"),
        (["v5e:1x1"], [{"data": 1}], "'auto' or has a mesh"),
        (["v5e:2x2"], {"v5e:2x2": {"replica": 2, "fsdp": 2}}, r"pass shardings=.*P\('replica'\)"),
    ],
)
def test_a_wrong_choice_is_an_error_before_anything_is_compiled(
    chips: Any,
    meshes: Any,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, x = step_of(8)
    reported: list[object] = []
    monkeypatch.setattr(plan_module, "fit", reported.append)
    with pytest.raises(ValueError, match=said):
        jaxtorch.plan(step, x, chips=chips, meshes=meshes)
    assert not reported


def test_what_is_divided() -> None:
    rule = divided({"data": 4})
    assert rule("x", (8, 16)) == P("data")
    assert rule("x", (3, 16)) == P(None, "data")
    assert rule("model.0.weight", (4, 16)) == P(None, "data")
    assert rule("model.0.weight", (16, 4)) == P("data")
    assert rule("model.0.weight", (3, 5)) == P()
    assert rule("loss", ()) == P()
    assert divided({"data": 1})("x", (8, 16)) == P()
    assert divided({"x": 1, "y": 1})("x", (8, 16)) == P()


def test_what_replicas_divide() -> None:
    rule = divided({"replica": 2, "data": 4})
    assert rule("x", (16, 8)) == P(("replica", "data"))
    assert rule("x", (4, 8)) == P("data")  # too few examples for all
    assert rule("model.0.weight", (16, 64)) == P(None, "data")


@pytest.mark.parametrize(
    ("target", "meshes"),
    [
        ("v5e:1x1", [{"data": 1}]),
        ("v5e:2x4", [{"data": 8}]),
        ("v5e:4x4", [{"data": 16}, {"replica": 4, "data": 4}]),
        ("v5p:4x4x4", [{"data": 64}, {"replica": 4, "data": 16}]),
    ],
)
def test_the_meshes_that_are_tried(target: str, meshes: list[dict[str, int]]) -> None:
    assert plan_module._automatic(target, None) == meshes


MEGATRON = {"0.weight": P("model", None), "1.weight": P(None, "model"), "x": P("data")}


@pytest.mark.parametrize(
    ("target", "shardings", "meshes"),
    [
        ("v5e:1x1", MEGATRON, [(1, 1)]),
        ("v5e:4x4", MEGATRON, [(16, 1), (4, 4), (1, 16)]),
        ("v5e:2x4", MEGATRON, [(8, 1), (2, 4), (4, 2), (1, 8)]),
        ("v3:2x2", MEGATRON, [(8, 1), (4, 2), (2, 4), (1, 8)]),
        ("v5p:2x2x4", MEGATRON, [(16, 1), (4, 4), (8, 2), (2, 8), (1, 16)]),
        ("v5e:4x4", {"x": P(("rows", "columns"))}, [(16, 1), (4, 4), (1, 16)]),
        ("v5e:4x4", {"x": P("batch")}, [(16,)]),
    ],
)
def test_meshes_have_the_axes_that_shardings_name(
    target: str, shardings: dict[str, P], meshes: list[tuple[int, ...]]
) -> None:
    found = plan_module._automatic(target, shardings)
    assert len(found) == len(meshes)
    assert {tuple(mesh.values()) for mesh in found} == set(meshes)
    axes = {axis for spec in shardings.values() for axis in plan_module._axes({"": spec})}
    assert all(set(mesh) == axes for mesh in found)


def test_shardings_without_axes_are_tried_on_one() -> None:
    for shardings in ({"x": P()}, {"x": None}):
        assert plan_module._automatic("v5e:2x2", shardings) == [{"data": 4}]  # type: ignore[arg-type]  # None replicates


@needs_libtpu
def test_every_split_of_a_slice_into_data_and_model_is_compiled() -> None:
    step, x = step_of(512)
    shardings = {"x": P("data"), "*0.weight": P("model"), "*1.weight": P(None, "model")}
    result = jaxtorch.plan(step, x, chips="v5e:2x2", shardings=shardings)
    meshes = [choice.mesh for choice in result.choices]
    assert meshes == [
        {"data": 4, "model": 1},
        {"data": 2, "model": 2},
        {"data": 1, "model": 4},
    ]
    used = [choice.report.used for choice in result.choices if choice.report is not None]
    # Parameters and their states are divided over "model".
    assert used == sorted(used, reverse=True)
    assert len(used) == 3


@needs_libtpu
def test_a_mesh_that_does_not_divide_is_a_row_with_the_reason() -> None:
    step, x = step_of(514)  # which 4 does not divide
    shardings = {"x": P("data"), "*.weight": P("model")}
    result = jaxtorch.plan(step, x, chips="v5e:2x2", shardings=shardings)
    assert [choice.verdict for choice in result.choices] == ["yes", "yes", "rejected"]
    assert "model.0.weight" in result.choices[-1].error
    with pytest.raises(ValueError, match="no input of the program matches"):
        jaxtorch.plan(step, x, chips="v5e:2x2", shardings={"nothing": P("data")})


@needs_libtpu
def test_replicas_gather_over_fewer_chips_and_take_more_memory() -> None:
    step, x = step_of(512)
    meshes = [{"data": 4}, {"replica": 2, "data": 2}]
    result = jaxtorch.plan(step, x, chips=["v5e:2x2"], meshes={"v5e:2x2": meshes})
    one, hybrid = result.choices
    assert [one.mesh, hybrid.mesh] == meshes
    assert one.report is not None
    assert hybrid.report is not None
    assert hybrid.report.used > one.report.used
    heading, *rows = str(result).splitlines()
    assert heading.split()[:2] == ["chips", "mesh"]
    assert [row.split()[1] for row in rows] == ["data=4", "replica=2"]


@pytest.mark.parametrize(
    ("mesh", "axis"),
    [
        ({"fsdp": 4}, "fsdp"),
        ({"data": 2, "model": 4}, "data"),
        ({"model": 4, "data": 2}, "data"),
        ({"data": 1, "fsdp": 4}, "fsdp"),
        ({"replica": 1, "chips": 2}, "chips"),
    ],
)
def test_the_axis_along_which_everything_is_divided(mesh: dict[str, int], axis: str) -> None:
    assert divided(mesh)("x", (8, 16)) == P(axis)
    assert divided(mesh)("model.0.weight", (3, 16)) == P(None, axis)


@needs_libtpu
def test_a_plan_does_not_depend_on_the_name_of_the_only_axis() -> None:
    step, x = step_of(512)
    reports = []
    for axis in ("data", "fsdp"):
        (choice,) = jaxtorch.plan(step, x, chips="v5e:2x2", meshes={"v5e:2x2": {axis: 4}}).choices
        assert choice.report is not None
        assert choice.report.time is not None
        assert {"all-gather", "reduce-scatter"} <= set(choice.report.time.units)
        reports.append((choice.report.used, choice.seconds))
    assert reports[0] == reports[1]


def test_wrong_meshes() -> None:
    step, x = step_of(8)
    with pytest.raises(ValueError, match="'auto' or has a mesh"):
        jaxtorch.plan(step, x, chips=["v5e:1x1"], meshes="data")
    with pytest.raises(ValueError, match="2 devices"):
        jaxtorch.plan(step, x, chips=["v5e:2x2"], meshes={"v5e:2x2": {"data": 2}})


def test_what_is_no_step_is_an_error_that_says_what_to_write() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x

    with pytest.raises(TypeError, match=r"jaxtorch\.plan\(jaxtorch\.jit\(step\)"):
        jaxtorch.plan(step, torch.empty(2, device="meta"), chips=["v5e:1x1"])


@pytest.mark.parametrize("chips", ["v5e:1x1", ["v5e:1x1", "v5e:2x2"]])
def test_without_the_compiler_no_program_is_rejected(
    chips: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JAXTORCH_LIBTPU", "~/libtpu")
    step, x = step_of(8)
    with pytest.raises(CompileError, match=f"pip install .*{tmp_path}/libtpu"):
        jaxtorch.plan(step, x, chips=chips)
