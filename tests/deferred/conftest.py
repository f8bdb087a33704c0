"""Deferred execution for the tests of windows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jaxtorch.deferred import recorder as recording
from jaxtorch.deferred.switch import switch

from . import modes


@pytest.fixture
def deferred() -> Iterator[None]:
    """Windows are compiled at their second sighting, by the flush."""
    with modes.deferred("random"):
        switch.recorder.most_calls = recording.MOST_CALLS
        yield
