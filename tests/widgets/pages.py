"""What tests ask of a view's static HTML."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """A page that was read: its tags, its text, its attributes; each tag must be closed."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("br", "img", "input", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        # A notebook that is not trusted removes an SVG and keeps its text, run together.
        assert "svg" not in self.open or not data.strip(), data
        self.text += data


def harmless(page: str) -> Page:
    """A page that runs nothing and loads nothing."""
    read = Page(page)
    assert not read.tags & {"script", "img", "iframe", "link", "object", "input", "form"}
    assert not [name for name in read.attributes if name.startswith("on")]
    assert not read.attributes & {"src", "href", "srcdoc"}
    return read
