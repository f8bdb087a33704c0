"""`JAXTORCH_DEFERRED=MODE` runs the tests with deferred execution (`deferred/modes.py`)."""

import os

from .deferred import modes

if mode := os.environ.get("JAXTORCH_DEFERRED"):
    modes.use(mode)
