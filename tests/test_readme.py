"""The README: its example runs as pasted, its figures are those of the docs, its links lead somewhere."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text("utf-8")


def section(heading: str) -> str:
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of a table, without its head."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def test_the_example_runs_as_pasted(tmp_path: Path) -> None:
    example = re.findall(r"```python\n(.*?)```", section("Example"), re.DOTALL)[0]
    (tmp_path / "example.py").write_text(example)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run.returncode == 0, run.stderr
    loss, device = re.fullmatch(r"loss (\S+) on (\S+)\n", run.stdout).groups()
    assert float(loss) < 0.01
    assert device == "jax:0"
    assert after.ru_utime - before.ru_utime < 10


def test_sections_stand_in_order() -> None:
    headings = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    assert headings[:5] == [
        "Install",
        "Example",
        "Why this one",
        "Numbers",
        "Supported versions",
    ]
    opening = TEXT.partition("\n## ")[0]
    assert opening.count("<picture>") == TEXT.count("<picture>") == 1


def test_the_figures_are_those_of_the_docs() -> None:
    figures = (ROOT / "docs" / "performance.md").read_text("utf-8")
    ratios = {ratio for *_, cell in rows(section("Numbers")) for ratio in cell.split(", ")}
    assert len(ratios) == 7
    assert [ratio for ratio in ratios if not re.search(rf"\| {re.escape(ratio)}\b", figures)] == []


def test_the_table_of_projects_is_whole() -> None:
    assert {len(row) for row in rows(section("Why this one"))} == {6}


def test_versions_are_those_of_the_metadata() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = section("Supported versions")
    low, high = re.search(r"torch>=(\d+\.\d+),<2\.(\d+)", project["dependencies"][0]).groups()
    assert f"PyTorch {low} to 2.{int(high) - 1}" in text
    low, high = re.search(r">=(3\.\d+),<3\.(\d+)", project["requires-python"]).groups()
    assert f"Python {low} to 3.{int(high) - 1}" in text
    assert re.search(r"jax>=([\d.]+)", project["dependencies"][1])[1] in text


def test_extras_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = set(re.findall(r"jaxtorch-kernel\[(\w+)\]", TEXT))
    assert named
    assert named <= extras.keys()


def test_links_into_the_repository_exist() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", TEXT) + re.findall(
        r'(?:src|srcset)="([^"]+)"', TEXT
    )
    assert [target for target in targets if not (ROOT / target).exists()] == []
