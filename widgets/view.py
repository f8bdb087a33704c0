"""The base class of all views: text in a terminal, static HTML on a page, and live where widgets are available.

A view draws plain data of `jaxtorch.insight` and computes nothing. A terminal shows `text`. GitHub, nbconvert and
untrusted notebooks show `html`: inline style, tables, `<details>`, no script. The live form draws `data`, ready for
JSON, and requests more through `answer`.

Most views are a `PageView`: they describe their page once (`page.py`), and all three forms are drawn from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from .page import Page
from .page_html import page_html
from .page_text import page_text
from .protocol import Data, Json, plain


class View(ABC):
    """A view. Subclasses name the live form that draws them, if there is one.

    Attributes:
        kind: the name of the live form; "" if there is none.
    """

    kind: ClassVar[str] = ""

    @abstractmethod
    def text(self) -> str:
        """For a terminal: lines of at most about 100 columns."""

    @abstractmethod
    def html(self) -> str:
        """For a page without scripts. Everything that comes from a user is escaped."""

    def data(self) -> Data:
        """For the live form: JSON. A list of rows whose objects have an `id` is sent row by row."""
        return {}

    def answer(self, ask: str, arguments: Mapping[str, Json]) -> object:
        """Answer a request of the live form; `plain` makes the answer JSON. Each view defines its own `ask` values."""
        raise LookupError(f"{type(self).__name__} does not know {ask!r}")

    def revision(self) -> object:
        """A value that stays equal as long as the view would show the same; None for a view that never changes.

        It is polled up to ten times a second from a separate thread while the view is visible, so it must be cheap.
        """
        return None

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html()

    def _repr_mimebundle_(self, **formats: Any) -> Any:
        """The output that a notebook saves and shows: the HTML, which a front end with widgets makes live."""
        from .live import bundle

        return bundle(self)


class PageView(View):
    """A view that is a page."""

    kind = "page"

    @abstractmethod
    def page(self) -> Page:
        """What the view shows now."""

    def text(self) -> str:
        return page_text(self.page())

    def html(self) -> str:
        return page_html(self.page())

    def data(self) -> Data:
        """The page under `page`, and the rows of each section under its key, so that they are sent row by row."""
        page = plain(self.page())
        assert isinstance(page, dict)
        data: Data = {"page": page}
        for section in page["sections"]:
            if "rows" in section:
                data[section["key"]] = section["rows"]
                section["rows"] = []
        return data
