"""The one list of known gaps: entry -> kind of check -> reason.

A gap that is listed must fail, and a failure that is not listed is an error: so the list cannot rot. `make conformance`
checks all of it, `make test` the part that its sample meets.
"""

from __future__ import annotations

GAPS: dict[str, dict[str, str]] = {}
