"""Hooks of `make docs`: insert the help of the magics into the pages, and make the search work without a server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MAGIC = re.compile(r"^\{\{ help of (%%?\w+) \}\}$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs calls this for each page."""
    return _MAGIC.sub(lambda found: f"```text\n{_help(found[1])}\n```", markdown)


def on_post_build(config: Mapping[str, Any], **_: Any) -> None:
    """mkdocs calls this at the end. A page opened from disk may not fetch a file, but may load it as a script."""
    folder = Path(config["site_dir"], "search")
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "search_index.js").write_text(f"var __index = {index}", encoding="utf-8")


def _help(magic: str) -> str:
    from jaxtorch.magics.cell_magics import CellMagics
    from jaxtorch.magics.jax_magic import JaxMagics

    function = getattr(JaxMagics if magic == "%jax" else CellMagics, magic.lstrip("%"))
    lines = (function.__doc__ or "").strip("\n").splitlines()
    if lines and lines[0].strip() == "::":  # IPython writes the options as reST
        lines = lines[1:]
    return "\n".join(lines).strip()
