"""The fast paths of eager calls in C++."""

from __future__ import annotations

import pytest

from jaxtorch.native.loading import calls

# `test_build.py` fails if the module is missing where it can be compiled.
COMPILED = pytest.mark.skipif(
    calls is None, reason="eager calls run in Python: `python -m jaxtorch.native` says why"
)
