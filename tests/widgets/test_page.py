"""A page that is described once says the same in each of its forms."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from html import unescape
from typing import Annotated

import pytest

from jaxtorch.widgets.page import (
    Chart,
    Code,
    Column,
    Fact,
    Facts,
    Note,
    Notes,
    Page,
    Row,
    Table,
    columns,
    filtered,
    shown_lines,
)
from jaxtorch.widgets.page_html import page_html
from jaxtorch.widgets.page_text import code_lines, page_text
from jaxtorch.widgets.saved import MOST_PAGE, saved_size
from jaxtorch.widgets.view import PageView

from .pages import harmless

EVIL = "<img src=x onerror=alert(1)>"


@dataclass(frozen=True)
class Item(Row):
    name: Annotated[str, Column("name", "code", most=8)]
    size: Annotated[int | None, Column("size", "bytes", mark="guess")]
    empty: Annotated[str | None, Column("never seen")]
    guess: bool = False


class Shown(PageView):
    """A page with a section of each type, whose words all come from a user."""

    def __init__(self, words: str | None = None):
        self.words = words

    def page(self) -> Page:
        why = Notes((Note(f"why {EVIL}", ("advice",)),), title="reasons")
        rows = [
            Item(id=1, name="conv", size=1536, empty=None, detail=(why,)),
            Item(id=2, name=EVIL, size=None, empty=""),
            Item(id=4, name="last", size=20, empty="", guess=True),
        ]
        shown = columns(Item, rows)
        return Page(
            f"title {EVIL}",
            (f"fact {EVIL}",),
            (f"warning {EVIL}",),
            (
                Facts((Fact(f"name {EVIL}", (f"line {EVIL}",)),)),
                Table("items", shown, rows, "Items", omitted="omitted", numbered=True),
                Code("code", shown, rows, "Source", "file.py"),
                Chart("peaks", None, text=lambda: "drawn", html=lambda: "<b>drawn</b>"),
            ),
            filter=self.words,
        )


def test_the_text_has_each_section() -> None:
    assert Shown().text().splitlines() == [
        f"title {EVIL}: fact {EVIL}",
        f"warning {EVIL}",
        "",
        f"name {EVIL}  line {EVIL}",
        "",
        "Items",
        "#  name          size",
        "1  conv      1.50 KiB",
        f"    why {EVIL}",
        "      advice",
        "2  <img sr…",
        "3  last         ~20 B",
        "omitted",
        "",
        "file.py         size",
        "--------------------",
        "   1  conv  1.50 KiB",
        "   ⋮",
        "   4  last     ~20 B",
        "",
        "drawn",
    ]


def test_the_html_says_the_same_and_escapes_everything() -> None:
    page = harmless(Shown().html())
    for word in ("title", "fact", "warning", "name", "line", "why"):
        assert f"{word} {EVIL}" in page.text
    for word in ("1.50 KiB", "~20 B", "advice", "omitted", "file.py", "drawn", "⋮"):
        assert word in page.text
    assert "never seen" not in page.text


def test_the_data_has_the_rows_under_the_key_of_their_table() -> None:
    data = json.loads(json.dumps(Shown().data()))
    assert [row["name"] for row in data["items"]] == ["conv", EVIL, "last"]
    assert data["items"] == data["code"]
    types = [section["type"] for section in data["page"]["sections"]]
    assert types == ["facts", "table", "code", "chart"]
    assert data["page"]["sections"][1]["rows"] == []


def test_every_field_of_a_row_is_sent() -> None:
    """What a view knows of a row, such as whether a value is a guess, cannot be lost on the way."""
    [*_, last] = Shown().data()["items"]
    assert set(last) == {"id", "search_text", "detail", "opened", "name", "size", "empty", "guess"}


@dataclass(frozen=True)
class Line(Row):
    code: Annotated[str, Column("code", "code")]
    share: Annotated[float | None, Column("share", "share")]
    first: Annotated[int | None, Column("first", "bytes")]
    second: Annotated[int | None, Column("second", "bytes")]


def source(width: int, every: bool = False) -> Code[Line]:
    """Five lines, of which the second and the last have figures."""
    code = ["def f(x):", f"    y = {'x' * width}", "", "    # nothing", "    return y"]
    rows = [
        Line(id=n, code=line, share=0.5 if n in (2, 5) else None, first=n, second=n)
        if n in (2, 5)
        else Line(id=n, code=line, share=None, first=None, second=None)
        for n, line in enumerate(code, 1)
    ]
    return Code("code", columns(Line, rows), rows, "Source", "cell [1]", "share", every)


def test_code_comes_first_keeps_half_the_width_and_each_line_is_there_once() -> None:
    short, long = (page_text(Page("", sections=(source(n),))).splitlines() for n in (5, 500))
    assert short[0].split() == ["cell", "[1]", "share", "first", "second"]
    assert [line.split()[0] for line in short[2:]] == ["2", "⋮", "5"]
    assert "50.0 % ████" in short[2]
    assert max(map(len, long)) <= 120
    assert len(long[2].partition("…")[0]) >= 60
    narrow = code_lines(source(500), shown_lines(source(500)), 40)
    assert narrow[0].split() == ["cell", "[1]", "share"]  # the others found no room
    assert len(narrow[1].partition("…")[0]) >= 19
    every = page_text(Page("", sections=(source(5, every=True),))).splitlines()
    assert [line[:5].strip() for line in every[2:]] == ["1", "2", "3", "4", "5"]


def test_a_page_without_its_style_keeps_the_indentation_of_code() -> None:
    """GitHub, and a notebook that nobody trusts, take the style off."""
    html = re.sub(r' style="[^"]*"', "", page_html(Page("", sections=(source(5),))))
    first, *_ = re.findall(r"<pre>(.*?)</pre>", html, re.DOTALL)
    assert "\n   2      y = xxxxx" in first
    assert "return y" in first
    assert "nothing" not in first
    folded = html.partition("all 5 lines")[2]
    assert "\n   4      # nothing\n" in folded


def test_a_page_has_the_rows_that_matter_and_is_never_too_large() -> None:
    detail = (Notes((Note("why " * 40),), "reasons"),)
    rows = [
        Item(id=n, name=f"name {n}", size=n, empty=None, detail=detail, opened=True)
        for n in range(1000)
    ]
    table = Table("items", columns(Item, rows), rows, "Items", weight="size")
    for count in (150, 1000):
        html = page_html(Page("", sections=(replace(table, rows=rows[:count]),)))
        assert saved_size(html) <= MOST_PAGE
        names = [int(n) for n in re.findall(r">name (\d+)<", html)]
        assert names == list(range(count - len(names), count))
        assert ("more: the live view has them" in html) == (count == 1000)
        assert 3 <= html.count("<ul>") < count
    small = page_html(Page("", sections=(replace(table, rows=rows[:20]),)))
    assert small.count("<details open>") == 21  # all of them, and the part that they are in


@pytest.mark.parametrize(
    ("words", "names"), [("CONV", ["conv"]), ("-conv -last", [EVIL]), ("1536 conv", ["conv"])]
)
def test_a_filter_has_words_that_must_be_there_or_missing(words: str, names: list[str]) -> None:
    table = Shown().page().sections[1]
    assert isinstance(table, Table)
    assert [row.name for row in filtered(table, words) if isinstance(row, Item)] == names
    for shown in (Shown(words).text(), harmless(Shown(words).html()).text):
        assert ("conv" in shown.partition("Items")[2].partition("file.py")[0]) == ("conv" in names)


def test_a_filter_that_leaves_nothing_says_so() -> None:
    assert "No row contains 'nothing'." in Shown("nothing").text()


@pytest.mark.parametrize(
    "name",
    [
        "a_training_step_of_a_deep_network",
        "model.layers[3].weight.grad",
        "x" * 90,
        f"y = {EVIL}" * 4,
    ],
)
def test_a_long_name_can_break_and_stays_the_same_text(name: str) -> None:
    rows = [Item(id=1, name=name, size=5, empty=None)]
    html = page_html(Page("", sections=(Table("items", columns(Item, rows), rows),)))
    assert name in harmless(html).text
    (cell,) = re.findall(r"<td style=[^>]*>(.*?)</td>", html)
    assert max(len(unescape(piece)) for piece in cell.split("<wbr>")) <= 20
    assert re.search(r"<td nowrap [^>]*>5 B</td>", html)  # what is short stays whole
