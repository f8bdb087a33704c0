"""`%%jax profile`, `%jax profile statement`, `%%jax lines` in a real shell."""

from __future__ import annotations

import json
import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
from IPython.core.error import UsageError

from jaxtorch.programs import tracing, watching
from jaxtorch.widgets.timeline import timeline

from .cells import fails, pressing, run

N = 64
SETUP = f"""
import torch
%jax on
torch.manual_seed(0)
a, b = torch.randn({N}, {N}), torch.randn({N}, {N})
"""

CELL = """%%jax profile
x = a @ b

for _ in range(10):
    y = x @ b
y.sum()
"""


class Page(HTMLParser):
    """The tags and the text of a page; each tag is closed."""

    VOID = frozenset(("br", "meta", "wbr"))

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.words = ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        # A notebook that is not trusted removes an SVG and keeps its text, run together.
        assert "svg" not in self.open or not data.strip(), data
        self.words += data


@pytest.fixture
def session(shell: Any) -> Any:
    """A shell with two matrices."""
    run(shell, SETUP)
    return shell


def by_line(view: Any) -> dict[int, Any]:
    """The times of the profiled cell."""
    return {
        row.location.line: row.time for row in view.profile.lines if row.location.file == view.first
    }


def test_a_cells_lines_are_numbered_as_they_stand(session: Any) -> None:
    view = run(session, CELL)
    times = by_line(view)
    assert times.keys() == {2, 5, 6}
    assert times[2].flops == 2 * N**3
    assert times[5].flops == 10 * 2 * N**3
    assert view.profile.attributed == 1.0
    assert session.user_ns["y"].shape == (N, N)  # the names of the cell are set


def test_functions_of_other_cells_have_their_lines_there(session: Any) -> None:
    run(session, "def f(x):\n    return x @ b\n")
    view = run(session, "%%jax profile\nz = f(a)\n\nz = f(z)")
    assert not by_line(view)
    (row,) = view.profile.lines
    assert (row.location.line, row.time.flops) == (2, 2 * 2 * N**3)
    calling = {row.location.line: row.inclusive.flops for row in view.profile.calling}
    assert calling == {2: 2 * N**3, 4: 2 * N**3}
    assert row.inclusive == row.time
    assert [source.file for source in view.sources()] == [view.first, row.location.file]
    assert view.data()["lines"][-1]["source"] == "z = f(z)"
    view = run(session, "%%jax profile\nz = f(f(f(a)))\nw = a + b")
    assert [source.file for source in view.sources()] == [view.first, row.location.file]


def test_a_statement(session: Any) -> None:
    view = session.run_line_magic("jax", "profile --warmup 1 --repeat 2 (a @ b).sum()")
    assert view.profile.repeat == 2
    assert sum(row.time.flops for row in view.profile.lines) == pytest.approx(2 * N**3, rel=0.05)
    assert "(a @ b).sum()" in view.text()


def test_repeat_and_warmup_run_the_cell_so_often(session: Any) -> None:
    session.user_ns["count"] = []
    view = run(session, "%%jax profile --repeat 3 --warmup 2\ncount.append(1)\nx = a + b")
    assert len(session.user_ns["count"]) == 5
    assert view.profile.repeat == 3
    assert by_line(view)[3].count == 1  # of one run


def test_memory(session: Any) -> None:
    view = run(session, "%%jax profile --memory\nbig = torch.randn(256, 256)\ndel big")
    assert view.profile.recording.memory.peak >= 256 * 256 * 4
    assert "at most" in view.text()
    assert "memory" not in run(session, "%%jax profile\nx = a + b").text()


@pytest.mark.parametrize("magic", ["%%jit", "%%pure", "%%pure -q --name mine"])
def test_a_cell_under_another_magic(session: Any, magic: str) -> None:
    view = run(session, f"%%jax profile --warmup 1\n{magic}\nx = a @ b\n\ny = torch.sort(x).values")
    times = {row.location.line: row.time for row in view.profile.lines}
    assert times[2].flops == pytest.approx(2 * N**3, rel=0.1)
    assert "sort" in {
        s.origin.operator for s in view.profile.attribution.shares if s.origin.location.line == 4
    }
    assert session.user_ns["y"].shape == (N, N)
    assert "run_cell_magic" not in view.text() + view.html()  # IPython's own form of the cell


def test_lines_show_the_code(session: Any) -> None:
    view = run(session, CELL.replace("profile", "lines"))
    rows = [row.split(maxsplit=1) for row in view.text().splitlines()]
    code = {int(r[0]): r[1] for r in rows if len(r) == 2 and r[0].isdigit()}
    assert code[2].startswith("x = a @ b")
    assert "%" in code[2]
    assert 4 not in code  # it took no time on the device
    assert code[5].lstrip().startswith("y = x @ b")
    every = run(session, CELL.replace("profile", "lines --all")).text()
    assert "\n   4  for _ in range(10):" in every
    assert "\n   5      y = x @ b" in every
    numbers = [n for n, *_ in (row.split() for row in every.splitlines() if row) if n.isdigit()]
    assert len(numbers) == len(set(numbers))  # each line once
    lines = {line["line"]: line for line in view.data()["source 0"]}
    assert lines[4]["device"] is None
    assert lines[5]["ops"] == 10 * lines[2]["ops"]
    assert "y = x @ b" in Page(view.html()).words


def test_lines_and_programs_show_the_cell_as_it_was_typed(session: Any) -> None:
    cell = "%who_ls\ndef g(x):\n    return x @ b\n!true\n"
    session.run_cell(cell, store_history=True).raise_error()
    lines = run(session, "%%jax lines --all\ng(a)")
    (source,) = [s for s in lines.sources() if "g(x)" in s.lines[1].text]
    assert [line.text for line in source.lines] == cell.splitlines()
    step = "%who_ls\nimport jaxtorch\n@jaxtorch.jit\ndef h(x):\n    return x @ b\nx = h(a)"
    session.run_cell(step, store_history=True).raise_error()
    assert "%who_ls" in run(session, "%jax hlo h").html()


def test_a_source_without_text_has_its_figures_in_their_columns(session: Any) -> None:
    run(session, "exec(compile('def f(x):\\n    return x @ b', '/nowhere/unknown.py', 'exec'))")
    view = run(session, "%%jax lines\nf(a)")
    (number,) = (i for i, s in enumerate(view.sources()) if s.file == "/nowhere/unknown.py")
    sections = {section["key"]: section for section in view.data()["page"]["sections"]}
    code, *figures = sections[f"source {number}"]["columns"]
    assert code["key"] == "code"
    assert figures
    for page in (view.text(), Page(view.html()).words):
        head = page[page.index("/nowhere/unknown.py") :].splitlines()[0]
        assert head.split()[1:] == [column["label"] for column in figures]


def test_lines_of_code_that_does_nothing_on_the_device_say_so(session: Any) -> None:
    view = run(session, "%%jax lines\npass")
    assert "Nothing ran on the device." in Page(view.html()).words
    assert view.data()["page"]["sections"][-1]["empty"] == "Nothing ran on the device."


@pytest.mark.parametrize("way", ["eager", "pure", "jit"])
def test_lines_that_call_show_the_time_of_what_they_call(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A model from a file: its work is that of the cell's line, by the file's lines."""
    (tmp_path / "own_models.py").write_text(
        "def twice(x, b):\n    y = x @ b\n    return y @ b\ndef four(x, b):\n    return twice(twice(x, b), b)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    run(session, "import jaxtorch\nfrom own_models import four\nmodel = four")
    if way != "eager":
        run(session, f"@jaxtorch.{way}\ndef model(x, b):\n    return four(x, b)")
    view = run(session, "%%jax lines --warmup 1\nx = 1\nz = model(a, b)")
    product = 2 * N**3
    lines = {
        (Path(source.file).name, line.number): line
        for source in view.sources()
        for line in source.lines
        if line.inclusive is not None
    }
    inclusive = {key: line.inclusive.flops for key, line in lines.items()}
    assert inclusive.pop((Path(view.first).name, 3)) == 4 * product
    file = "own_models.py"
    assert {k: v for k, v in inclusive.items() if k[0] == file} == {
        (file, 2): 2 * product, (file, 3): 2 * product, (file, 5): 4 * product,
    }  # fmt: skip
    assert sum(line.time.flops for line in lines.values() if line.time) == 4 * product
    for page in (view.text(), Page(view.html()).words):
        assert "inclusive" in page
        assert "return twice(twice(x, b), b)" in page


def test_what_is_shown_is_text_and_never_markup(session: Any) -> None:
    evil = "<img src=x onerror=alert(1)>"
    view = run(
        session,
        f"""%%jax profile
class Net(torch.nn.Module):
    def forward(self, x):
        with torch.profiler.record_function("{evil}"):
            return x @ b  # {evil}
Net.__name__ = "{evil}"
x = Net()(a)
""",
    )
    scope = {s.origin.scope for s in view.profile.attribution.shares}
    assert scope == {(evil, evil)}
    for page in (view.html(), run(session, f"%%jax lines\nx = a @ b  # {evil}").html()):
        parsed = Page(page)
        assert not parsed.tags & {"img", "script", "a", "iframe"}
        assert evil in parsed.words
    assert evil in view.text()


def test_data_is_json_with_columns_of_one_length(session: Any) -> None:
    view = run(session, CELL)
    data = json.loads(json.dumps(view.data()))
    events = data["events"]
    (length,) = {len(column) for column in events.values()}
    assert length == len(view.profile.recording.events) > 0
    assert set(events["name"]) <= set(range(len(data["names"])))
    assert set(events["lane"]) <= set(range(len(data["lanes"])))
    ids = {row["id"]: row for row in data["lines"]}
    assert set(events["line"]) <= {-1, *ids}
    lines = {ids[i]["line"] for i in set(events["line"]) - {-1}}
    assert lines == {2, 5, 6}
    assert {row["source"] for row in data["lines"]} == {"x = a @ b", "y = x @ b", "y.sum()"}
    assert all(set(row["lines"]) <= set(ids) for row in data["instructions"])
    assert data["tree"]["total"] == pytest.approx(data["device"])
    assert view.kind == "profile"


def test_it_opens_with_its_finding_in_each_form(session: Any) -> None:
    view = run(session, CELL)
    data = view.data()
    sentence = data["heading"]["finding"]
    # The ten small products may take less time than the first, which starts XLA's threads.
    slowest = max(view.profile.lines, key=lambda row: row.time.total).location.line
    source = {row["line"]: row["source"] for row in data["lines"]}[slowest]
    assert f"`{source}`, line {slowest}; the device idles" in sentence
    assert sentence.split(";")[0] in view.text().replace("\n", " ")
    assert sentence.replace("`", "") in Page(view.html()).words
    assert f"<code>{source}</code>" in view.html()


# A function of many lines, whose operators, instructions and modules are many.
BIG = (
    "class Deep(torch.nn.Module):\n    def forward(self, x):\n"
    + "".join(
        f"        with torch.profiler.record_function('part {i}'):\n            x = torch.tanh(x @ b + {i})\n"
        for i in range(80)
    )
    + "        return x\nbig = Deep()\n"
)


def test_what_a_notebook_saves_is_small_and_the_rest_is_in_a_file(session: Any) -> None:
    run(session, BIG)
    view = run(session, "%%jax profile\nfor _ in range(20):\n    z = big(a)")
    saved = json.dumps({"text/plain": view.text(), "text/html": view.html()})
    assert len(saved) <= 60_000
    assert "the live view and a file of --save have them" in Page(view.html()).words
    complete = Page(view.complete().html()).words
    for i in range(80):
        assert f"x = torch.tanh(x @ b + {i})" in complete
    assert "--save have them" not in complete
    assert "--save have them" not in view.text()


def test_the_live_form_gets_the_longest_events_alone(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxtorch.widgets.profile_data.EVENTS", 7)
    view = run(session, CELL)
    data = view.data()
    durations = sorted(view.profile.recording.events.duration.tolist())
    assert sorted(data["events"]["duration"]) == durations[-7:]
    assert data["omitted"] == len(durations) - 7
    assert {len(column) for column in data["events"].values()} == {7}


def test_live_and_saved_have_the_same_colours(session: Any) -> None:
    view = run(session, CELL)
    data, page = view.data(), view.html()
    colours = {c["name"]: c["colour"] for c in data["categories"]}
    assert colours["idle"] == colours["waiting"]
    assert len(set(colours.values())) == len(colours) - 1
    for group in data["phases"]:
        for part in group["parts"]:
            assert part["colour"] == colours.get(part["name"], colours["forward"])
            assert part["colour"] in page or not part["time"]


def test_a_trace_for_perfetto(session: Any, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "out.json"
    view = run(session, CELL.replace("profile", f"profile --save {file}"))
    assert str(file) in capsys.readouterr().out
    trace = json.loads(file.read_text())["traceEvents"]
    slices = [event for event in trace if event["ph"] == "X"]
    assert all({"name", "ts", "dur", "pid", "tid"} <= event.keys() for event in slices)
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    lines = [tracks[e["pid"], e["tid"]] for e in slices if e["pid"] == 3]
    assert sum("y = x @ b" in name for name in lines) == 10 * sum("x = a @ b" in n for n in lines)
    events = view.profile.recording.events
    assert len(slices) == len(events) + len(lines)
    assert {e["pid"] for e in slices} == {1, 2, 3}


def test_a_page_of_its_own(session: Any, tmp_path: Path) -> None:
    file = tmp_path / "out.html"
    run(session, CELL.replace("profile", f"profile --save {file}"))
    page = file.read_text()
    parsed = Page(page.removeprefix("<!doctype html>"))
    assert "y = x @ b" in parsed.words
    assert not parsed.tags & {"script", "link", "img", "iframe"}
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("profile", "Nothing to run"),
        ("profile --repeat 2", "Nothing to run"),
        ("profile --repeat 0 a @ b", "at least 1"),
        ("profile --repeat x a @ b", "--repeat"),
        ("profile --save out.txt a @ b", "ending in .json"),
        ("profile --tepeat 2 a @ b", "--repeat"),
        ("lines", "Nothing to run"),
    ],
)
def test_a_mistake_is_one_line(session: Any, capsys: Any, line: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        session.run_line_magic("jax", line)
    assert len(fails(session, capsys, f"%jax {line}").splitlines()) == 1


def test_words_over_a_cell_are_options(session: Any, capsys: Any) -> None:
    assert "only options" in fails(session, capsys, "%%jax profile a @ b\nx = 1")
    assert "Nothing to run" in fails(session, capsys, "%%jax profile\n\n")
    assert "not valid Python" in fails(session, capsys, "%%jax profile\nx = (")


def test_a_file_that_cannot_be_written_is_one_line(session: Any, capsys: Any) -> None:
    output = fails(session, capsys, "%jax profile --save /nowhere/at/all.json a @ b")
    assert len([line for line in output.splitlines() if "/nowhere" in line]) == 1


def test_an_error_of_the_cell_is_shown_as_always(session: Any, capsys: Any) -> None:
    output = fails(session, capsys, "%%jax profile\na @ b\n\nundefined\n")
    assert "NameError" in output
    assert "undefined" in output
    assert "record.py" not in output  # our frames are hidden
    assert watching.watcher is None
    assert tracing.depth == 0
    assert by_line(run(session, CELL))


def test_ctrl_c_shows_what_ran_until_there(session: Any, capsys: Any) -> None:
    cell = "%%jax profile\nend = time.time() + 60\nwhile time.time() < end:\n    x = a @ b\n"
    run(session, "import time\nx = a @ b")
    with pressing(1.0):
        result = session.run_cell(cell, store_history=False)
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert "x = a @ b" in capsys.readouterr().out
    assert watching.watcher is None
    assert tracing.depth == 0


def test_a_profile_that_runs_already_is_one_line(session: Any, capsys: Any, tmp_path: Path) -> None:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(tmp_path), profiler_options=options):
        output = fails(session, capsys, "%jax profile a @ b")
    assert len(output.splitlines()) == 1
    assert "stop_trace" in output


def test_a_roofline_where_the_peak_is_given(session: Any) -> None:
    cell = "%%jax profile --warmup 1\nx = a @ b\ny = x + a"
    plain = run(session, cell)
    assert plain.profile.peak is None  # nobody knows this CPU's
    assert "Roofline" not in plain.text() + Page(plain.html()).words
    run(session, "%jax config peak=1e12,1e11")
    try:
        view = run(session, cell)
    finally:
        run(session, "%jax config peak=None")
    assert view.data()["peak"] == {"name": "cpu", "flops": 1e12, "bandwidth": 1e11}
    product, added = sorted(view.profile.roofline, key=lambda p: p.row.location.line)
    assert product.intensity == pytest.approx(2 * N**3 / (3 * 4 * N * N))
    assert added.intensity == pytest.approx(1 / 12)
    assert (product.memory, added.memory) == (False, True)
    page = Page(view.html())
    assert "svg" in page.tags
    for text in (view.text(), page.words):
        assert "Roofline of cpu: 1.00 TFLOP/s, 100 GB/s" in text
    assert run(session, cell).profile.peak is None


def test_plain_cpu_code_has_an_empty_profile(session: Any) -> None:
    view = run(session, "%%jax profile\nx = torch.ones(3, device='cpu') + 1\ny = sum(range(10))")
    assert view.profile.device == 0
    assert view.profile.attributed == 1.0
    assert "0" in view.text()
    Page(view.html())
    assert json.dumps(view.data())
    assert isinstance(session.user_ns["x"], torch.Tensor)


def test_a_timeline_without_its_style_is_no_wall_of_names(session: Any) -> None:
    view = run(session, CELL.replace("profile", "profile --repeat 5"))
    html = timeline(view.profile)
    events = view.profile.recording.events
    named = set(re.findall(r'title="([^"]*): [^"]*"', html))
    assert len(named) >= 3  # the tooltips
    assert named <= {escape(name) for name in events.names}
    words = re.sub(r"<[^>]*>", "", html)
    assert not any(name in words for name in named if len(name) > 12)
    assert len(words) < 60 * (len(events.lanes) + 2)
    for row in re.findall(r'<div style="display:flex;height[^>]*>(.*?)</div>', html):
        sizes = re.findall(r"margin-left:([\d.]+)%;width:([\d.]+)%", row)
        assert sizes
        assert sum(float(a) + float(b) for a, b in sizes) < 103  # no box is beyond the end
