"""The fit report of programs that the TPU's own compiler has compiled, and the view of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from jax.sharding import PartitionSpec as P
from torch import nn

import jaxtorch
from jaxtorch.base.units import size
from jaxtorch.capture.lowering import Lowered
from jaxtorch.capture.tpu import shared_compiler
from jaxtorch.insight.fit.report import Fit
from jaxtorch.insight.fit.wide_types import wide_work
from jaxtorch.widgets.fit import FitView
from jaxtorch.widgets.saved import MOST, saved_size
from tests.libtpu import needs_libtpu
from tests.widgets.pages import harmless

pytestmark = needs_libtpu

BATCH, WIDTH, HIDDEN, CLASSES = 64, 512, 2048, 130


@pytest.fixture(scope="module", autouse=True)
def _one_compiler() -> Iterator[None]:
    with shared_compiler():
        yield


def training_step(batch: int, target: str, width: int = WIDTH, **options: object) -> Lowered:
    """A step of two layers with AdamW in bfloat16, lowered for a target."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(width, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, CLASSES))
        model.to(torch.bfloat16)
        x = torch.empty(batch, width, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())

    @jaxtorch.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step.lower(x, target=target, **options)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def report() -> Fit:
    return jaxtorch.fit(training_step(BATCH, "v5e:1x1").compile())


def test_the_operations_of_a_training_step_are_exact(report: Fit) -> None:
    forward = 2 * BATCH * (WIDTH * HIDDEN + HIDDEN * CLASSES)
    to_weights = forward
    to_hidden = 2 * BATCH * HIDDEN * CLASSES  # the input of the model needs no gradient
    assert report.flops == forward + to_weights + to_hidden
    assert report.multiplied == report.flops  # bfloat16 takes one pass
    assert report.time is not None
    assert report.utilization == pytest.approx(report.flops / (report.time.total * 197e12))
    assert report.time.total == pytest.approx(sum(report.time.limits.values()))
    for parts in (report.lines, report.parts):
        assert sum(part.seconds for part in parts) == pytest.approx(report.time.total)
        assert sum(part.flops for part in parts) == report.flops


def test_the_memory_of_a_training_step_is_that_of_its_kinds(report: Fit) -> None:
    kinds = {row.kind: row for row in report.memory}
    # A row of 130 numbers takes two tiles of 128; 130 rows take 136.
    stored = 2 * (HIDDEN * WIDTH + HIDDEN + 136 * HIDDEN + 256)
    assert kinds["parameters"].bytes == stored
    assert kinds["parameters"].padding == 2 * (6 * HIDDEN + 126)
    steps_and_rate = 5 * 4 * 128
    assert kinds["optimizer state"].bytes == 2 * stored + steps_and_rate
    assert kinds["inputs"].bytes == 2 * BATCH * WIDTH
    assert report.fits
    assert report.verdict.startswith("Fits a TPU v5e: ")
    assert " a step (estimate), bound by " in report.verdict
    names = {buffer.name for buffer in report.peak}
    assert {"model.0.weight", "optimizer.exp_avg[0]", "x"} <= names


def test_lines_and_modules_are_those_of_the_torch_code(report: Fit) -> None:
    files = {part.location.file for part in report.lines if part.location is not None}
    assert files == {__file__}
    modules = {part.name for part in report.parts if part.flops}
    assert modules == {"Sequential.0", "Sequential.2"}


def test_a_sharded_step_sends_its_gradients() -> None:
    lowered = training_step(4 * BATCH, "v5e:2x2", mesh={"data": 4}, shardings={"x": P("data")})
    report = jaxtorch.fit(lowered.compile())
    assert report.devices == 4
    assert report.time is not None
    numbers = HIDDEN * WIDTH + HIDDEN + CLASSES * HIDDEN + CLASSES
    # A ring of four over both axes, which do not close: 100 GB/s. Gradients are bfloat16 or, before rounding, float32.
    least = 2 * 3 / 4 * 2 * numbers / 100e9
    assert least * 0.99 <= report.time.units["all-reduce"] <= 2.05 * least
    assert "per chip" in report.verdict


def test_a_program_that_is_too_large_says_by_how_much() -> None:
    lowered = training_step(256, "v5e:1x1", width=2_000_000)
    report = jaxtorch.fit(lowered)
    assert not report.fits
    kinds = {row.kind: row.bytes for row in report.memory}
    assert kinds["parameters"] == 2 * (HIDDEN * 2_000_000 + HIDDEN + CLASSES * HIDDEN + CLASSES)
    assert report.used > 15.75 * 2**30
    assert report.verdict.startswith("Does not fit a TPU v5e: ")
    weights = size(kinds["parameters"] + kinds["optimizer state"])
    assert f"Parameters and optimizer state alone take {weights}. Shard" in report.findings[0]


@pytest.mark.parametrize(("dtype", "found"), [(torch.float32, []), (torch.float64, ["float64"])])
def test_wide_arithmetic_is_found_with_its_line(dtype: torch.dtype, found: list[str]) -> None:
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype).sin().to(torch.float32)

    x = torch.empty(256, 256, device="meta")
    report = jaxtorch.fit(jaxtorch.pure(scale).lower(x, target="v5e:1x1").compile())
    assert [work.dtype for work in report.wide] == found
    if found:
        (work,) = report.wide
        assert work.elements == 256 * 256
        assert work.location is not None
        assert work.location.line == scale.__code__.co_firstlineno + 1
        assert any("float64" in sentence for sentence in report.findings)


@pytest.mark.parametrize(
    ("precision", "advised"), [("highest", "high"), ("high", "medium"), ("medium", None)]
)
@pytest.mark.parametrize("name", ["product", "convolution", "Fourier transform"])
def test_the_advice_about_precision_has_an_effect(
    name: str, precision: str, advised: str | None
) -> None:
    x = torch.empty(32, 64, 64, 64, device="meta")
    operators: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "product": lambda x: x @ x,
        "convolution": lambda x: torch.conv2d(x, x[:, :, :3, :3]),
        "Fourier transform": lambda x: torch.fft.fft(x).abs(),
    }
    before = torch.get_float32_matmul_precision()
    reports = []
    try:
        for one in (precision, advised or precision):
            torch.set_float32_matmul_precision(one)
            lowered = jaxtorch.pure(operators[name]).lower(x, target="v5e:1x1")
            reports.append(jaxtorch.fit(lowered))
    finally:
        torch.set_float32_matmul_precision(before)
    first, second = reports
    said = [sentence for sentence in first.findings if "matmul_precision" in sentence]
    if name == "Fourier transform":
        assert first.multiplied == second.multiplied
        advised = None
    assert bool(said) == (advised is not None)
    if advised is not None:
        assert f'"{advised}"' in said[0]
        assert second.multiplied < first.multiplied


_WIDE_OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "floor_divide": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "sort": lambda a, b: a.sort().values,
    "where": lambda a, b: torch.where(a > b, a * 2, b),
    "cumsum": lambda a, b: a.cumsum(0),
    "cond": lambda a, b: torch.cond(a.sum() > b.sum(), lambda a: a // 3, lambda a: a % 3, (a,)),
    "gradient": lambda a, b: torch.func.grad(lambda x: (x % b.to(x.dtype)).sum())(a.double()),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
@pytest.mark.parametrize("name", _WIDE_OPERATORS)
def test_wide_arithmetic_within_an_operator_of_jax_has_the_line(
    name: str, dtype: torch.dtype
) -> None:
    """JAX traces the functions that it compiles itself apart from their callers."""
    operator = _WIDE_OPERATORS[name]
    x = torch.empty(8, 8, dtype=dtype, device="meta")
    lowered = jaxtorch.pure(lambda a, b: operator(a, b)).lower(x, x)
    found = wide_work(lowered.jaxpr)
    assert found
    for work in found:
        assert work.location is not None, work
        assert work.location.file == __file__


def test_padding_that_matters_is_a_finding() -> None:
    narrow = torch.empty(100_000, 3, device="meta")
    f = jaxtorch.pure(lambda x: x.sin(), name="narrow")
    wide = jaxtorch.fit(f.lower(torch.empty(4096, 128, device="meta"), target="v5e:1x1").compile())
    assert not wide.padding
    report = jaxtorch.fit(f.lower(narrow, target="v5e:1x1").compile())
    numbers = 4 * narrow.numel()
    rows = {row.kind: row.bytes - row.padding for row in report.memory}
    assert (rows["inputs"], rows["outputs"]) == (numbers, numbers)
    assert report.padded > 0
    assert any("is stored as" in sentence for sentence in report.findings)


@pytest.mark.parametrize("name", ["", "step", "step for v5e:1x1"])
def test_the_heading_names_the_target_once(report: Fit, name: str) -> None:
    heading = FitView(report, name, "a note").text().splitlines()[1]
    assert heading.count("v5e:1x1") == 1
    assert "a note" in heading


def test_a_program_without_modules_and_products() -> None:
    """Its time is that of its memory, which no larger batch makes better, and no compiler made its lines."""
    f = jaxtorch.pure(lambda x: x * 2, name="doubled")
    report = jaxtorch.fit(f.lower(torch.empty(256, 256, device="meta"), target="v5e:1x1"))
    assert not any("larger batch" in sentence for sentence in report.findings)
    text = FitView(report).text()
    assert "(outside of modules)" in text
    assert "matrix unit " not in text.partition("Time by line")[0].partition("Time\n")[2]


def test_the_view_shows_the_report_in_every_form(report: Fit) -> None:
    view = FitView(report, "<step>")
    text = view.text()
    assert text.splitlines()[0] == report.verdict
    page = harmless(view.html())
    for what in ("<step>", "What is assumed", "optimizer state", "model.0.weight", "matrix unit"):
        assert what in page.text
    assert saved_size(view.html()) <= MOST
    data = view.data()
    assert {row["kind"] for row in data["kinds"]} >= {"parameters", "optimizer state"}
    assert sum(row["bytes"] for row in data["kinds"]) == report.used


def test_a_program_that_does_nothing_waits_for_nothing() -> None:
    x = torch.empty(4, 4, device="meta")
    report = jaxtorch.fit(jaxtorch.pure(lambda x: x).lower(x, target="v5e:1x1"))
    assert report.time is not None
    assert (report.time.total, report.time.bound) == (0.0, "")
    assert "a step" not in report.verdict
