"""For `make docs`: the one example of a docstring is shown as the session that it is.

Under "Examples:" mkdocstrings expects doctests, under "Example:" prose.
"""

from __future__ import annotations

from typing import Any

import griffe


class Examples(griffe.Extension):  # type: ignore[misc]  # griffe's types are not looked at
    """Reads "Example:" as "Examples:"."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """griffe calls this for everything it finds."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
