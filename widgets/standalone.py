"""A view as a self-contained page."""

from __future__ import annotations

from html import escape

from .view import View

_STYLE = (
    "body{font-family:system-ui,sans-serif;margin:1.5em;color:#1f2328;background:#fff}"
    "@media (prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}}"
)


def standalone(view: View, title: str) -> str:
    """The static form of a view as a complete HTML document."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{view.html()}</body></html>"
    )
