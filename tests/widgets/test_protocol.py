"""The kernel's side of the protocol; `widgets/js/test/protocol.test.ts` reads the same cases from the other side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from jaxtorch.widgets import protocol

JS = Path(__file__).parents[2] / "widgets" / "js"
CASES = json.loads((JS / "test" / "patches.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["title"])
def test_a_patch_has_what_changed(case: dict) -> None:
    assert protocol.difference(case["old"], case["new"]) == case["changes"]


def test_nothing_changed_is_no_patch() -> None:
    for case in CASES:
        assert protocol.difference(case["new"], case["new"]) == {}


def test_every_value_becomes_json_that_browsers_read() -> None:
    data = {"a": (float("inf"), np.float32(0.5), np.arange(2)), 3: {"b": object}, "c": True}
    plain = protocol.plain(data)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain == {"a": [None, 0.5, [0, 1]], "3": {"b": "<class 'object'>"}, "c": True}


def test_both_sides_speak_the_same_version_and_know_the_same_messages() -> None:
    source = (JS / "src" / "protocol.ts").read_text()
    assert f"VERSION = {protocol.VERSION};" in source
    assert f"v: {protocol.VERSION}," in (JS / "src" / "shell.ts").read_text()
    theirs = set(re.findall(r'type: "(\w+)"', source))
    documented = set(
        re.findall(r"^    (\w+)(?= [| ])|\| (close)", protocol.__doc__ or "", re.MULTILINE)
    )
    assert theirs == {name for pair in documented for name in pair if name} | {"end"}
