"""The base class of all views: text in a terminal, static HTML on a page, and live where widgets are available.

A view draws plain data of `jaxtorch.insight` and computes nothing. A terminal shows `text`. GitHub, nbconvert and
untrusted notebooks show `html`, which has inline style, tables and `<details>`, but no script. The live form draws
`data`, which is JSON, and requests more through `answer`.

Most views are a `PageView`. They describe their page once (`page.py`), and all three forms are drawn from it.
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
    """A view. A subclass with a live form has its name as `kind`.

    Attributes:
        kind: the name of the live form; "" if there is none.
    """

    kind: ClassVar[str] = ""

    @abstractmethod
    def text(self) -> str:
        """The view for a terminal, in lines of at most about 100 columns."""

    @abstractmethod
    def html(self) -> str:
        """The view for a page without scripts. Everything that comes from a user is escaped."""

    def data(self) -> Data:
        """The JSON for the live form. A list of objects that each have an `id` is sent row by row."""
        return {}

    def answer(self, ask: str, arguments: Mapping[str, Json]) -> object:
        """Answer a request of the live form. Each view has its own values of `ask`. `plain` makes the answer JSON."""
        raise LookupError(f"{type(self).__name__} does not know {ask!r}")

    def revision(self) -> object:
        """A value that stays equal while the contents of the view stay the same; None for a view that never changes.

        While the view is visible, a separate thread polls it up to ten times a second. So it must be cheap.
        """
        return None

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html()

    def _repr_mimebundle_(self, **formats: Any) -> Any:
        """The output that a notebook saves and shows: the HTML. A front end with widgets makes it live."""
        from .live import bundle

        return bundle(self)


class PageView(View):
    """A view that is a page."""

    kind = "page"

    @abstractmethod
    def page(self) -> Page:
        """The current contents of the view."""

    def text(self) -> str:
        return page_text(self.page())

    def html(self) -> str:
        return page_html(self.page())

    def data(self) -> Data:
        """The page under `page`, and the rows of each section under its key, so that changed rows are sent alone."""
        page = plain(self.page())
        assert isinstance(page, dict)
        data: Data = {"page": page}
        for section in page["sections"]:
            if "rows" in section:
                data[section["key"]] = section["rows"]
                section["rows"] = []
        return data
