"""The view of a program: the contents of its text, its page and its data, which must agree."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from typing import Any

import pytest
import torch

import jaxtorch
from jaxtorch.base.jax_private import hlo_text
from jaxtorch.insight.hlo.reading import Reading
from jaxtorch.insight.programs import ProgramInfo, keep, programs
from jaxtorch.widgets import hlo_data
from jaxtorch.widgets.diff import DiffView
from jaxtorch.widgets.hlo import INFERRED, HloView
from jaxtorch.widgets.hlo_data import tables
from jaxtorch.widgets.hlo_format import full_text
from jaxtorch.widgets.page import Table
from jaxtorch.widgets.protocol import plain
from jaxtorch.widgets.units import amount, counted, size
from tests.insight.hlo.programs import run

ODD = "<img src=x onload=alert(1)>\"'&"  # test_cache.py looks for its own program, by `onerror`

SOURCE = f"""\
def f(x, w):
    y = x @ w
    with torch.profiler.record_function({ODD!r}):
        z = torch.sin(y) * 2
    note = {ODD!r}
    return (z + y).sum()
"""


_ALLOWED = {
    "style",
    "id",
    "href",
    "title",
    "scope",
    "colspan",
    "cellpadding",
    "open",
    "class",
    "nowrap",
}


class Tags(HTMLParser):
    """The tags of a page, each closed; its anchors and the links to them."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in ("br", "wbr"):
            self.open.append(tag)
        for name, value in attrs:
            assert name in _ALLOWED, name
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def asked(view: HloView, ask: str, **arguments: Any) -> Any:
    """An answer as the page gets it."""
    return json.loads(json.dumps(plain(view.answer(ask, arguments))))


def section(data: Any, key: str) -> Any:
    """The table of this key."""
    [found] = [s for s in data["page"]["sections"] if s.get("key") == key]
    return found


def newest(name: str) -> ProgramInfo:
    return [p for p in programs() if p.name == name][-1]


@pytest.fixture(scope="module")
def view() -> Iterator[HloView]:
    captured = jaxtorch.pure(run(SOURCE, {"torch": torch})["f"], name=ODD)
    with torch.no_grad():
        captured(torch.randn(8, 16, device="jax"), torch.randn(16, 4, device="jax"))
    yield HloView(Reading(newest(ODD)))
    del captured


def test_the_text_has_a_line_of_figures_for_each_line_of_code(view: HloView) -> None:
    lines = view.text().splitlines()
    (product,) = [n for n in lines if n.lstrip().startswith("2  ")]
    assert " ".join(product.split()) == "2 y = x @ w 1 1.02 k 92 0 896 B"
    (quiet,) = [n for n in lines if n.lstrip().startswith("5  ")]
    assert quiet.strip() == f"5      note = {ODD!r}"[: len(quiet.strip())]
    heading = next(n for n in lines if "moved" in n)
    assert heading.startswith("1.12 k FLOPs, 32 transcendentals")
    assert max(map(len, lines[1:])) <= 100


def test_lines_and_words_choose_what_is_shown(view: HloView) -> None:
    reading = view.reading
    for stage, word in (("hlo", "sine"), ("stablehlo", "stablehlo.sine"), ("jaxpr", "sin")):
        chosen = HloView(reading, stage, 4).text()
        _, _, listing = chosen.partition("come from line 4")
        assert word in listing
        assert not re.search(r"\bdot(_general)?\b", listing)
        grepped = HloView(reading, stage, None, "SIN").text()
        _, _, listing = grepped.partition("contain 'SIN'")
        shown = listing.splitlines()[1:]
        assert len(shown) == len(reading.listing(stage).grep("sin")) > 0
        assert all("sin" in line.lower() for line in shown)
    assert "0 come from line 99" in HloView(reading, "hlo", 99).text()


def test_the_page_links_lines_and_instructions_both_ways(view: HloView) -> None:
    html = view.html()
    page = Tags(html)
    assert len(set(page.ids)) == len(page.ids)
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    rows = dict(re.findall(r'<span id="([^"]*)"[^>]*>(.*?)</span>', html, re.DOTALL))
    (product,) = [row for row in rows.values() if "y = x @ w" in row]
    assert product.index(amount(2 * 4 * 8 * 16)) < product.index("y = x @ w")  # wherever it ends
    texts = [rows[link] for link in re.findall(r'href="#([^"]*)"', product)]
    assert len(texts) == 3  # jaxpr, StableHLO, HLO: the first line of each that the product became
    for word, code in ((" dot(", "y = x @ w"), (" sine(", "z = torch.sin(y) * 2")):
        (text,) = [row for row in rows.values() if word in row]
        (back,) = re.findall(r'href="#([^"]*)"', text)
        assert code in rows[back]
    (source,) = {link for text in texts for link in re.findall(r'href="#([^"]*)"', text)}
    assert "y = x @ w" in rows[source]


def test_names_are_text_and_never_markup(view: HloView) -> None:
    html = view.html()
    page = Tags(html)
    assert not page.seen & {"img", "script", "iframe", "object", "link"}
    assert ODD in "".join(page.words)
    other = DiffView(view.reading, view.reading).html()
    assert not Tags(other).seen & {"img", "script"}
    assert ODD in "".join(Tags(other).words)


def test_the_data_is_json_and_its_numbers_are_the_texts(view: HloView) -> None:
    data = json.loads(json.dumps(view.data()))
    assert data["name"] == ODD
    rows = section(data, "lines")["rows"]
    total = view.reading.costs.total
    for column in ("flops", "transcendentals", "bytes"):
        assert sum(row[column] for row in rows) == pytest.approx(getattr(total, column))
    codes = {}
    for row in rows:
        if row["id"] >= 0:
            source, line = data["lines"][row["id"]]
            part = data["sources"][source]
            code = part["lines"][line - part["first"]].strip()
            codes[code] = row["flops"]
            assert row["line"] == f"{line}  {code}"
    assert codes["y = x @ w"] == 2 * 8 * 16 * 4
    assert codes["z = torch.sin(y) * 2"] == 8 * 4


@pytest.mark.parametrize("stage", ["jaxpr", "stablehlo", "hlo"])
def test_links_of_a_stage_lead_to_the_code(view: HloView, stage: str) -> None:
    answer = asked(view, "stage", stage=stage)
    text = answer["text"].split("\n")
    assert len(text) == len(answer["links"])
    of_product = set()
    for line, group in zip(text, answer["links"], strict=True):
        if re.search(r"\bdot(_general)?\b[\[( ]", line) and "fusion" not in line and group >= 0:
            for location in answer["groups"][group]:
                source, number = answer["lines"][location]
                part = answer["sources"][source]
                of_product.add(part["lines"][number - part["first"]].strip())
    assert of_product == {"y = x @ w"}


def test_places_of_lines_stay_what_they_are_as_more_is_read(view: HloView) -> None:
    fresh = HloView(Reading(view.reading.program))
    before = fresh.data()["lines"]
    sources = [s["file"] for s in fresh.data()["sources"]]
    for stage in ("jaxpr", "stablehlo", "hlo"):
        after = asked(fresh, "stage", stage=stage)
        assert after["lines"][: len(before)] == before
        assert [s["file"] for s in after["sources"]][: len(sources)] == sources
        before = after["lines"]


def test_what_the_live_form_asks(view: HloView) -> None:
    module = view.reading.module
    dot = next(i for i in module.instructions.values() if i.opcode == "dot")
    lines = view.data()["lines"]  # the page has them before it asks
    found = asked(view, "instruction", name=dot.name)
    _, line = lines[found["lines"][0]]
    assert line == 2
    facts = {fact["name"]: fact["lines"] for fact in found["facts"]["facts"]}
    assert " = f32[8,4]{1,0} dot(" in facts["Instruction"][0]
    assert facts["Lines"] == ["2  y = x @ w"]
    assert facts["Origin"] == ["recorded by XLA"]
    assert facts["Cost"][0].startswith(f"{amount(2 * 8 * 16 * 4)} FLOPs, ")
    around = asked(view, "neighbourhood", instruction=dot.name, hops=1)
    nodes = {n[0]: n for n in around["nodes"]}
    assert nodes[dot.id][1:4] == [dot.name, "dot f32[8,4]", 0]
    assert {edge[0] for edge in around["edges"] if edge[1] == dot.id} == set(dot.operands)
    assert all(a in nodes and b in nodes for a, b in around["edges"])
    scopes = asked(view, "fold")
    assert ODD in {n[1] for n in scopes["nodes"]}
    file = asked(view, "download", stage="hlo")
    assert file["text"] == full_text(view.reading, "hlo")
    assert re.fullmatch(r"[\w.\-]+\.hlo\.txt", file["name"])
    with pytest.raises(LookupError, match="does not know 'nonsense'"):
        view.answer("nonsense", {})
    with pytest.raises(LookupError, match="no instruction 'nobody'"):
        view.answer("instruction", {"name": "nobody"})


def test_the_memory_is_that_of_the_arguments_and_results(view: HloView) -> None:
    data = view.data()
    [facts] = [s for s in data["page"]["sections"] if s["type"] == "facts"]
    memory = {fact["name"]: fact["lines"][0] for fact in facts["facts"]}
    assert memory["arguments"] == size(4 * (8 * 16 + 16 * 4))
    assert memory["results"] == "4 B"
    rows = [row for row in section(data, "buffers")["rows"] if row["kind"] == "argument"]
    assert sorted(row["bytes"] for row in rows) == sorted([4 * 8 * 16, 4 * 16 * 4])
    held = {name for row in rows for name in row["search_text"].split()}
    parameters = {i.name for i in view.reading.module.entry.instructions if i.opcode == "parameter"}
    assert held == parameters


def test_a_table_that_shows_some_fusions_says_of_how_many(
    view: HloView, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = [s for s in tables(view.reading, []) if s.title.startswith("Fusions")]
    assert isinstance(whole, Table)
    assert whole.title == f"Fusions ({len(view.reading.fusions)})"
    assert not whole.omitted
    many = Reading(view.reading.program)
    many.fusions = view.reading.fusions * 1300
    monkeypatch.setattr(hlo_data, "_ROWS", 7)
    (some,) = [s for s in tables(many, []) if s.title.startswith("Fusions")]
    assert isinstance(some, Table)
    assert some.title == f"Fusions (7 of {len(many.fusions):,})"
    assert some.omitted == f"The most expensive 7 of {len(many.fusions):,}."
    assert "," in some.title


def test_what_says_nothing_of_an_instruction_is_left_out_of_a_saved_page(view: HloView) -> None:
    assert "metadata=" in view.reading.listing("hlo").text
    for shown in (view.html(), view.text()):
        assert not re.search(r"metadata=|sharding=\{replicated\}", shown)


def test_code_keeps_its_indentation_where_the_style_is_taken_off(view: HloView) -> None:
    html = re.sub(r' style="[^"]*"', "", view.html())
    source = html.partition("<pre>")[2].partition("</pre>")[0]
    for line in SOURCE.splitlines()[1:5]:
        assert escape(line) in source
    assert "<table" not in html.partition("<details")[0]


def test_a_program_that_is_gone_says_so() -> None:
    captured = jaxtorch.pure(torch.cosh, name="soon gone")
    captured(torch.ones(3, device="jax"))
    info = newest("soon gone")
    Reading(info)
    del captured
    with pytest.raises(LookupError, match=r"soon gone .* is gone: it can no longer run"):
        Reading(info)


def test_a_kept_program_can_be_read_when_it_is_gone() -> None:
    captured = jaxtorch.pure(torch.sinh, name="kept for later")
    captured(torch.ones(3, device="jax"))
    info = newest("kept for later")
    before = HloView(Reading(info), "jaxpr")
    expected = [before.reading.listing(stage).lines for stage in ("jaxpr", "stablehlo", "hlo")]
    keep(info)
    del captured
    assert not info.alive
    view = HloView(Reading(info), "jaxpr")
    assert [view.reading.listing(s).lines for s in ("jaxpr", "stablehlo", "hlo")] == expected
    assert "sinh" in view.text()
    assert all(s["type"] != "facts" for s in view.data()["page"]["sections"])
    assert not Tags(view.html()).open


class Large:
    """A program of 50,000 lines that was never compiled: as much of a `ProgramInfo` as a view asks for."""

    id, name, title, kind, part, location, signature, source, alive = (
        1,
        "large",
        "large",
        "pure",
        "",
        None,
        (),
        1,
        True,
    )

    def hlo_proto(self) -> bytes:
        lines = [f"  n{i} = f32[4] sine(n{i - 1})" for i in range(1, 50_000)]
        text = "\n".join(["HloModule large", "ENTRY main {", "  n0 = f32[4] parameter(0)", *lines])
        from jaxlib._hlo import hlo_module_from_text

        whole = text + "\n  ROOT end = f32[4] negate(n49999)\n}"
        return bytes(hlo_module_from_text(whole).as_serialized_hlo_module_proto())

    def hlo_text(self, proto: bytes) -> str:
        return hlo_text(proto)

    def stablehlo(self) -> str:
        raise AssertionError("takes seconds, and was not asked for")

    trace = stablehlo

    def memory(self) -> None:
        return None

    def buffer_assignment(self) -> None:
        return None


def test_a_large_program_is_compact_and_makes_no_text_that_nobody_asked_for() -> None:
    view = HloView(Reading(Large()))  # type: ignore[arg-type]  # a stand-in
    data = json.dumps(view.data())
    assert len(data) < 10_000
    answer = asked(view, "stage", stage="hlo")
    assert len(answer["links"]) == len(answer["text"].split("\n")) > 50_000
    assert len(json.dumps(answer)) < 2 * len(answer["text"])
    page = view.html()
    assert len(page) < 300_000
    assert "400 of them here" in page
    assert "60 of them here" in view.text()
    around = asked(view, "neighbourhood", instruction="n25000", hops=1000)
    assert len(around["nodes"]) == 80
    assert asked(view, "fold")["nodes"][0][2] == "50,000 instructions"


def test_an_origin_that_is_inferred_is_never_shown_as_certain() -> None:
    """XLA drops the origin of some convolutions of a backward pass: all three forms say that theirs is a guess."""
    weights = [torch.randn(4, 4, 3, 3, device="jax", requires_grad=True) for _ in "ab"]
    captured = jaxtorch.pure(run(CONVOLVED, {"torch": torch})["f"], name="guessed")
    captured(torch.randn(2, 4, 8, 8, device="jax"), *weights).backward()
    reading = Reading([p for p in programs() if p.name == "guessed" and p.part == "backward"][-1])
    guesses = reading.module.inferred
    assert guesses
    shown = HloView(reading)
    says = f"XLA recorded no source location for {counted(len(guesses), 'instruction')}"
    assert says in " ".join(shown.text().split())
    assert says in "".join(Tags(shown.html()).words)
    assert any(says in warning for warning in shown.data()["page"]["warnings"])
    stage = asked(shown, "stage", stage="hlo")
    listing = reading.listing("hlo")
    assert {listing.instructions[line] for line in stage["inferred"]} == guesses
    assert not asked(shown, "stage", stage="stablehlo")["inferred"]
    for number in guesses:
        answer = asked(shown, "instruction", name=reading.module.instructions[number].name)
        origin = [fact for fact in answer["facts"]["facts"] if fact["name"] == "Origin"]
        assert [fact["lines"] for fact in origin] == [[INFERRED]]
    fusions = {row["id"]: row["inferred"] for row in section(shown.data(), "fusions")["rows"]}
    assert fusions == {f.instruction.name: f.instruction.id in guesses for f in reading.fusions}


CONVOLVED = """\\
def f(x, a, b):
    y = torch.nn.functional.conv2d(x, a)
    z = torch.nn.functional.conv2d(y.relu(), b)
    return z.square().sum()
"""
