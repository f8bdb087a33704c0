"""Payloads are described once: the TypeScript types are what the dataclasses say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

import pytest

from jaxtorch.widgets.page import Column, Row
from jaxtorch.widgets.protocol import plain
from jaxtorch.widgets.schema import KERNEL_ONLY, typescript
from scripts import view_types


def test_the_generated_types_are_up_to_date() -> None:
    assert view_types.FILE.read_text() == view_types.generated(), "make widgets"


class Cost(NamedTuple):
    flops: int
    bytes: float


@dataclass(frozen=True)
class Inner:
    kind: Literal["a", "b"]


@dataclass(frozen=True)
class Outer:
    cost: Cost
    inner: Inner | None
    pairs: list[tuple[str, int]]
    by_name: dict[str, Inner]
    marked: Annotated[str, Column("name")]
    hidden: str = field(default="", metadata=KERNEL_ONLY)


def test_each_kind_of_field_has_its_type() -> None:
    assert typescript([Outer]).split("\n\n") == [
        "export interface Outer {\n"
        "  cost: Cost;\n"
        "  inner: Inner | null;\n"
        "  pairs: [string, number][];\n"
        "  by_name: Record<string, Inner>;\n"
        "  marked: string;\n"
        "}",
        "export type Cost = [flops: number, bytes: number];",
        'export interface Inner {\n  kind: "a" | "b";\n}\n',
    ]


def test_what_is_sent_has_the_fields_of_the_type() -> None:
    sent = plain(Outer(Cost(1, 2.0), None, [("x", 1)], {"y": Inner("a")}, "name"))
    assert sent == {
        "cost": [1, 2.0],
        "inner": None,
        "pairs": [["x", 1]],
        "by_name": {"y": {"kind": "a"}},
        "marked": "name",
    }


def test_a_field_that_has_no_type_in_typescript_is_an_error() -> None:
    @dataclass
    class Odd:
        values: set[int]

    with pytest.raises(TypeError, match="neither a dataclass"):
        typescript([Odd])


def test_two_payloads_of_one_name_are_an_error() -> None:
    other = dataclass(type("Row", (), {"__annotations__": {"x": int}}))
    with pytest.raises(TypeError, match="two payloads are named Row"):
        typescript([Row, other])
