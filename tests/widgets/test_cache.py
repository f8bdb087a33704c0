"""The table of compiled programs: what it says of programs that are known, in its three forms."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch

import jaxtorch
from jaxtorch.insight.recompiles import clear, functions, named
from jaxtorch.programs import stats
from jaxtorch.widgets import cache, hosts, live
from jaxtorch.widgets.cache import CacheView
from jaxtorch.widgets.units import counted

from .pages import harmless

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def evil() -> Any:
    """A function with a name that would be markup, traced for two sizes and called three times."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    function = jaxtorch.pure(f, name=EVIL)
    for n in (4, 4, 9):
        function(torch.ones(n, device="jax"))
    yield function
    clear(named(EVIL))


def row(view: CacheView) -> dict[str, Any]:
    (matching,) = [r for r in view.data()["rows"] if r["name"] == EVIL]
    return matching


def test_a_row_counts_what_was_done(evil: Any) -> None:
    row_data = row(CacheView())
    assert (row_data["calls"], row_data["hits"], row_data["traced"]) == (3, 1, 2)
    assert (row_data["kind"], row_data["programs"]) == ("pure", 2)
    assert row_data["flops"] == 9
    notes, programs = row_data["detail"]
    assert [p["inputs"] for p in programs["rows"]] == ["float32[4]", "float32[9]"]
    assert [p["calls"] for p in programs["rows"]] == [2, 1]
    [note] = notes["notes"]
    assert note["text"].startswith("retraced: x[0] 4 -> 9")
    assert row_data["seconds"] == pytest.approx(
        row_data["trace"] + row_data["lowering"] + row_data["xla"]
    )


def test_data_is_json_of_rows_with_ids(evil: Any) -> None:
    data = json.loads(json.dumps(CacheView().data()))
    for rows in (data["rows"], data["cells"], data["sites"]):
        ids = [r["id"] for r in rows]
        assert len(ids) == len(set(ids))
    programs = sum(r["programs"] for r in data["rows"])
    assert data["page"]["title"] == counted(programs, "program")


def test_lines_of_two_files_of_one_name_are_two(evil: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST_SITES", 10**6)  # other tests' lines may be dearer

    def of(file: str) -> Any:
        names: dict[str, Any] = {"f": evil, "torch": torch}
        code = "def run(n):\n    return f(torch.ones(n, device='jax'))"
        exec(compile(code, file, "exec"), names)
        return names["run"]

    of("/one/twin_file.py")(21)
    of("/two/twin_file.py")(22)
    sites = [s for s in CacheView().data()["sites"] if s["location"] == "twin_file.py:2"]
    assert {s["id"] for s in sites} == {"/one/twin_file.py:2", "/two/twin_file.py:2"}


def test_text_has_a_line_for_each_function_and_says_why(evil: Any) -> None:
    lines = repr(CacheView(filter="onerror")).splitlines()
    assert max(map(len, lines)) <= 100
    (line,) = [i for i, text in enumerate(lines) if text.startswith("<img")]
    header = lines[line - 1]
    for name, value in (("calls", "3"), ("hits", "1"), ("traced", "2")):  # right under their names
        end = header.index(name) + len(name)
        assert lines[line][end - len(name) : end].split() == [value]
    assert lines[line + 1].strip().startswith("retraced: x[0] 4 -> 9")
    assert "drop_last" in "".join(lines[line + 2 :])


def test_html_shows_names_as_text(evil: Any) -> None:
    page = harmless(CacheView(filter="onerror").html())  # a page shows 200 rows
    assert EVIL in page.text
    assert "details" in page.tags
    assert "x[0] 4 -> 9" in page.text


def test_what_to_do_is_said_once() -> None:
    """For both names, and for all traces."""
    f = jaxtorch.pure(lambda x, y: x.sum() + y.sum(), name="advised")
    for n in (4, 9, 5):
        f(torch.ones(n, device="jax"), torch.ones(n, device="jax"))
    view = CacheView(filter="advised")
    for shown in (view.text(), harmless(view.html()).text):
        assert shown.count("drop_last") == 1
        assert "x[0] 9 -> 5, y[0] 9 -> 5" in shown
    clear(named("advised"))


def test_sort_and_filter(evil: Any) -> None:
    rows = CacheView("traced", "onerror pure").text().splitlines()
    assert [line.split()[0] for line in rows if " pure " in line] == ["<img"]
    assert "No row contains 'no-such-word'" in CacheView(filter="no-such-word").text()
    assert "No row contains" in CacheView(filter="no-such-word").html()
    times = [r["seconds"] for r in CacheView("time").data()["rows"]]
    assert times == sorted(times, reverse=True)


def test_the_revision_changes_with_what_is_shown(
    evil: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_PERIOD", 0.0)
    view = CacheView()
    revision = view.revision()
    assert view.revision() == revision
    evil(torch.ones(4, device="jax"))
    called = view.revision()
    assert called != revision
    view.answer("keep", {"row": row(view)["detail"][1]["rows"][0]["id"]})
    assert view.revision() != called
    assert [p["hlo"] for p in row(view)["detail"][1]["rows"]] == ["kept", ""]


def test_a_row_is_cleared_by_its_number(evil: Any) -> None:
    view = CacheView()
    view.answer("clear", {"row": row(view)["id"]})
    assert EVIL not in {f.name for f in functions()}
    assert evil.cache_info().currsize == 0
    evil(torch.ones(4, device="jax"))
    with pytest.raises(LookupError, match="does not know 'dance'"):
        view.answer("dance", {})


def test_many_programs_of_one_function_stay_readable(
    monkeypatch: pytest.MonkeyPatch, evil: Any
) -> None:
    monkeypatch.setattr(cache, "_MOST_PROGRAMS", 1)
    row_data = row(CacheView())
    programs = row_data["detail"][1]
    assert (len(programs["rows"]), programs["omitted"]) == (1, "1 earlier ones are not shown.")
    assert "1 earlier ones are not shown" in CacheView(filter="onerror").html()


def test_times_are_read_from_left_to_right(evil: Any) -> None:
    facts = CacheView().data()["page"]["facts"]
    for step in ("trace", "lowering", "XLA"):
        (fact,) = [fact for fact in facts if fact.endswith(f" {step}")]
        assert re.fullmatch(rf"[\d.]+ [µm]?s {step}", fact)


def test_what_was_traced_again_is_open(evil: Any) -> None:
    jaxtorch.pure(lambda x: x * 3, name="onerror once")(torch.ones(4, device="jax"))
    opened = {r["name"]: r["opened"] for r in CacheView().data()["rows"]}
    assert opened[EVIL]
    assert not opened["onerror once"]
    assert not opened.get("eager operators")
    html = CacheView(filter="onerror").html()
    assert html.count('<details open><summary style="cursor:pointer">retraced') == 1
    clear(named("onerror once"))


@pytest.mark.slow
def test_what_a_notebook_saves_of_123_programs_is_at_most_60_kilobytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for k in range(62):
        f = jaxtorch.pure(lambda x, k=k: x + 1.0, name=f"quince_{k}")
        for n in (1, 2):
            f(torch.ones(n, 3, device="jax"))
    assert len(CacheView(filter="quince_").page().sections[0].rows) >= 62
    monkeypatch.setattr(live.hosts, "host", lambda: hosts.Host("lab", live=False, in_place=True))
    saved = live.bundle(CacheView(filter="quince_"))
    assert isinstance(saved, dict)
    assert len(json.dumps(saved)) <= 60_000
    names = set(re.findall(r">quince_\d+<", saved["text/html"]))
    assert len(names) == 62  # each of them is a row, if not all of them open
    assert "retraced once" in saved["text/html"]
    assert "more lines" in saved["text/plain"]
    clear([f for f in functions() if f.name.startswith("quince_")])


def test_evicted_programs_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.ones(3, device="jax")
    view = CacheView()
    before = view.revision()
    monkeypatch.setattr(stats, "evicted", 1234)
    assert "1234 evicted" in " ".join(repr(view).split())
    assert "1234 evicted" in view.html()
    assert any("1234 evicted" in fact for fact in view.data()["page"]["facts"])
    assert view.revision() != before
