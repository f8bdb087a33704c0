"""Every row of every table, through every front door it applies to."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import (
    aliases,
    ambient,
    arguments,
    containers,
    effects,
    functions,
    modules,
    objects,
    plain_values,
    sharing,
    tensors,
    training,
)
from .harness import DOORS, Row, check

TABLES = (
    functions,
    plain_values,
    objects,
    containers,
    arguments,
    tensors,
    modules,
    training,
    ambient,
    effects,
    aliases,
    sharing,
)
ROWS: list[Row] = [row for table in TABLES for row in table.ROWS]
CASES = [(row, door) for row in ROWS for door in DOORS if row.applies(door)]


def test_every_row_has_a_name_of_its_own() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("row", "door"), CASES, ids=[f"{row.id} [{door}]" for row, door in CASES])
def test_a_change_between_two_runs(row: Row, door: str, tmp_path: Path) -> None:
    check(row, door, tmp_path)
