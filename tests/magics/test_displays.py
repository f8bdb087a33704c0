"""Results of the library that end a cell are views, while the extension is loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import jaxtorch
from jaxtorch.insight.fit.report import Fit, Time
from jaxtorch.insight.plan import Choice, Plan
from jaxtorch.widgets import hosts, live
from jaxtorch.widgets.plan import PlanView
from tests.widgets.pages import harmless


@pytest.fixture(scope="module")
def report() -> Fit:
    product = jaxtorch.pure(lambda x: x @ x)
    return jaxtorch.fit(product.lower(torch.ones(64, 64, device="jax")).compile())


def choice(report: Fit, target: str, devices: int, seconds: float, fits: bool = True) -> Choice:
    time = Time(seconds, {"HBM": seconds}, {"HBM": seconds})
    changed = replace(report, devices=devices, time=time, fits=fits, hbm=1e9)
    return Choice(target, {"data": devices}, changed)


@pytest.fixture
def plan(report: Fit) -> Plan:
    return Plan(
        (
            choice(report, "v5e:2x2", 4, 2.0),
            choice(report, "v5e:4x4", 16, 1.0),
            choice(report, "v5e:1x1", 1, 0.5, fits=False),
            Choice("v6e:1x1", {"data": 1}, None, "the compiler says <no>"),
        )
    )


@pytest.fixture(autouse=True)
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = hosts.Host("lab", live=False, in_place=True)
    monkeypatch.setattr(live.hosts, "host", lambda *shell: lab)


def shown(shell: Any, value: object) -> dict[str, str]:
    data, _ = shell.display_formatter.format(value)
    return dict(data)


def test_a_report_and_a_plan_are_views(shell: Any, report: Fit, plan: Plan) -> None:
    for value, words in ((report, "What is assumed"), (plan, "chips x time")):
        data = shown(shell, value)
        assert words in data["text/html"]
        harmless(data["text/html"])


def test_without_the_extension_they_are_text(shell: Any, report: Fit, plan: Plan) -> None:
    shell.run_line_magic("unload_ext", "jaxtorch")
    try:
        for value in (report, plan):
            assert shown(shell, value) == {"text/plain": repr(value)}
    finally:
        shell.run_line_magic("load_ext", "jaxtorch")
    assert "text/html" in shown(shell, plan)


def test_a_plan_names_the_cheapest_that_fits(plan: Plan) -> None:
    page = PlanView(plan).page()
    # 8 seconds of one chip; v5e:4x4 takes 16, v5e:1x1 does not fit
    assert "`v5e:2x2`" in page.finding
    assert "8.00 s" in page.finding
    lines = PlanView(plan).text().splitlines()
    rows = {
        name: next(line for line in lines if line.startswith(name))
        for name in ("v5e:1x1", "v6e:1x1")
    }
    assert rows["v5e:1x1"].split()[2] == "no"
    assert "~" not in rows["v5e:1x1"]
    assert rows["v6e:1x1"].split()[2] == "rejected"
    assert any("the compiler says <no>" in line for line in lines)
    html = PlanView(plan).html()
    assert "the compiler says &lt;no&gt;" in html
    assert ">inputs</td>" in html  # memory by kind below each row


@pytest.mark.parametrize("choices", [0, 1])
def test_a_plan_of_few_choices(plan: Plan, choices: int) -> None:
    few = Plan(plan.choices[:choices])
    page = PlanView(few).page()
    assert not page.finding
    assert len(page.sections[0].rows) == choices
    assert PlanView(few).text()
