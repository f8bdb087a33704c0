"""The base class of all views: text in a terminal, static HTML on a page, and live where widgets are available.

A view draws plain data of `jaxtorch.insight` and computes nothing. A terminal shows `text`. GitHub, nbconvert and
untrusted notebooks show `html`: inline style, tables, `<details>`, no script. The live form draws `data`, ready for
JSON, and requests more through `answer`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar


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

    def data(self) -> dict[str, Any]:
        """For the live form: JSON. A list of rows whose objects have an `id` is sent row by row."""
        return {}

    def answer(self, ask: str, arguments: dict[str, Any]) -> Any:
        """Answer a request of the live form, as JSON. Each view defines its own values of `ask`."""
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
