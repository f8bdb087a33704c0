"""The examples of docs/sharding.md give what the page says."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_the_page_about_many_devices() -> None:
    page = Path(__file__).parents[3] / "docs" / "sharding.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 20
    assert not failed
