"""A page that is described once says the same in each of its forms."""

from __future__ import annotations

import json
from dataclasses import dataclass
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
)
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
                Code("code", (*shown[1:], shown[0]), rows, "Source", "file.py"),
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
        "file.py",
        "    size  name",
        "----------------",
        "1.50 KiB  conv",
        "          <img sr…",
        "  ...",
        "   ~20 B  last",
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
    assert set(last) == {"id", "search_text", "detail", "name", "size", "empty", "guess"}


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
