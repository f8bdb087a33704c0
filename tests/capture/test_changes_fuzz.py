"""Random changes between the runs of captured code: JAXTORCH_CHANGES rows, from JAXTORCH_CHANGES_SEED on."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from . import fuzz_changes, fuzz_states
from .changes.harness import Row, check

COUNT = int(os.environ.get("JAXTORCH_CHANGES", "40"))
SEED = int(os.environ.get("JAXTORCH_CHANGES_SEED", "0"))
MOST_REFUSED = 0.1  # of the rows that write


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(partial(fuzz_changes.row, writes=False), id="reads"),
        pytest.param(partial(fuzz_changes.row, writes=True), id="reads and writes"),
        pytest.param(fuzz_states.row, id="states"),
    ],
)
def test_random_changes(
    row: Callable[[int], Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, kinds = [], Counter[str]()
    for seed in range(SEED, SEED + COUNT):
        changing = row(seed)
        doors = changing.doors[1:]
        door = doors[seed % len(doors)]
        try:
            kinds[check(changing, door, _folder(tmp_path, seed))] += 1
        except Exception as error:
            wrong.append(
                f"seed {seed} by {door}: {error!r}\n{changing.code}\nchanges: {changing.change}"
            )
    with capsys.disabled():
        print(
            f"\n{COUNT} rows of changes from seed {SEED}: {len(wrong)} wrong, {kinds['refused']} refused"
        )
    assert not wrong, "\n\n".join([f"{len(wrong)} wrong", *wrong[:5]])
    assert kinds["refused"] <= MOST_REFUSED * COUNT


def _folder(parent: Path, seed: int) -> Path:
    folder = parent / str(seed)
    folder.mkdir()
    return folder
