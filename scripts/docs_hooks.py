"""A hook of `make docs`, which inserts the help of the magics into the pages, as `%magic?` shows it."""

from __future__ import annotations

import re
from typing import Any

_MAGIC = re.compile(r"^\{\{ help of (%%?\w+) \}\}$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs calls this for each page."""
    return _MAGIC.sub(lambda found: f"```text\n{_help(found[1])}\n```", markdown)


def _help(magic: str) -> str:
    from jaxtorch.magics.cell_magics import CellMagics
    from jaxtorch.magics.jax_magic import JaxMagics

    function = getattr(JaxMagics if magic == "%jax" else CellMagics, magic.lstrip("%"))
    lines = (function.__doc__ or "").strip("\n").splitlines()
    if lines and lines[0].strip() == "::":  # IPython writes the options as reST
        lines = lines[1:]
    return "\n".join(lines).strip()
