"""Random training programs against the CPU: JAXTORCH_TRAINING_PROGRAMS of them, from JAXTORCH_TRAINING_SEED on."""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest

from .fuzz_training import program, run

COUNT = int(os.environ.get("JAXTORCH_TRAINING_PROGRAMS", "25"))
SEED = int(os.environ.get("JAXTORCH_TRAINING_SEED", "0"))
# Programs that are known to come out wrong; one that does not must be taken off the list.
KNOWN: dict[int, str] = {}
MOST_REFUSED = 0.25  # a fuzz that is refused more often tests too little


@pytest.mark.timeout(7200)
def test_training_programs(capsys: pytest.CaptureFixture[str]) -> None:
    wrong, refused = [], Counter[str]()
    for seed in range(SEED, SEED + COUNT):
        outcome = run(program(seed))
        if seed in KNOWN:
            assert outcome.kind == "wrong", f"seed {seed} is right now: take it off the list"
        elif outcome.kind == "wrong":
            wrong.append(f"seed {seed}: {outcome.message}\n{outcome.text}")
        elif outcome.kind == "refused":
            refused[re.sub(r"\(line \d+ of [^)]*\)", "", outcome.message)] += 1
    with capsys.disabled():
        print(
            f"\n{COUNT} training programs from seed {SEED}: {len(wrong)} wrong, {refused.total()} refused"
        )
        for message, count in refused.most_common():
            print(f"  {count} x {message}")
    assert not wrong, "\n\n".join([f"{len(wrong)} wrong", *wrong[:5]])
    assert refused.total() <= max(1, MOST_REFUSED * COUNT)
