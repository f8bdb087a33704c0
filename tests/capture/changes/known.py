"""What is known not to hold: (row, door) -> why. A case that holds all the same fails the suite."""

from __future__ import annotations

_DOUBLE = (
    "torch computes Adam's bias corrections in Python's double precision; under a single default dtype captured code "
    "computes them in float32"
)

KNOWN: dict[tuple[str, str], str] = {
    ("Adam in double precision, where single is the default", door): _DOUBLE
    for door in ("%%jit", "jit")
}
