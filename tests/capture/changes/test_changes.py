"""The rows of every table, through every front door they apply to: a sample, or all (`make thorough`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import (
    aliases,
    ambient,
    arguments,
    compiled,
    containers,
    created,
    effects,
    enumerated_states,
    firsts,
    functions,
    indirect,
    inherited,
    jax_functions,
    modules,
    moved,
    objects,
    plain_values,
    sharing,
    states,
    tensors,
    training,
)
from .harness import DOORS, Row, check
from .known import KNOWN

TABLES = (
    functions,
    plain_values,
    objects,
    containers,
    created,
    arguments,
    tensors,
    modules,
    training,
    ambient,
    effects,
    aliases,
    sharing,
    indirect,
    inherited,
    firsts,
    moved,
    states,
    enumerated_states,
    compiled,
    jax_functions,
)
ROWS: list[Row] = [row for table in TABLES for row in table.ROWS]
CASES = [(row, door) for row in ROWS for door in DOORS if row.applies(door)]


def _marks(row: Row, door: str) -> list[pytest.MarkDecorator]:
    why = KNOWN.get((row.id, door))
    return [] if why is None else [pytest.mark.xfail(reason=why, strict=True)]


def test_every_row_has_a_name_of_its_own() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)


def test_what_is_known_is_a_case() -> None:
    assert KNOWN.keys() <= {(row.id, door) for row in ROWS for door in DOORS if row.applies(door)}


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("row", "door"),
    [pytest.param(r, d, id=f"{r.id} [{d}]", marks=_marks(r, d)) for r, d in CASES],
)
def test_a_change_between_two_runs(row: Row, door: str, tmp_path: Path) -> None:
    check(row, door, tmp_path)
