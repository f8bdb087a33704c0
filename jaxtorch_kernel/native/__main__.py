"""`python -m jaxtorch.native`: compile the fast paths of eager calls now, and say where they are."""

from __future__ import annotations

import sys

from .build import build, target

if __name__ == "__main__":
    known = target().exists()
    try:
        path = build()
    except RuntimeError as error:
        sys.exit(f"jaxtorch runs eager calls in Python: {error}")
    print(f"{'Compiled before' if known else 'Compiled'}: {path}")
