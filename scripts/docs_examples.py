"""An extension for `make docs`, which shows the example of a docstring as an interactive session.

mkdocstrings reads doctests in a section "Examples:", but reads a section "Example:" as prose.
"""

from __future__ import annotations

from typing import Any

import griffe


class Examples(griffe.Extension):  # type: ignore[misc]  # mypy does not read griffe's types
    """Reads "Example:" as "Examples:"."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """griffe calls this for every object that it finds."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
