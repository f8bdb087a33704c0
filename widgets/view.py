"""What every view is: text in a terminal, HTML without a script on a page, and live where widgets can be.

A view draws plain data of `jaxtorch.insight` and computes nothing. `text` is what a terminal shows; `html` is what
GitHub, nbconvert and an untrusted notebook show: inline style, tables, `<details>`, no script; `data` is what the live
form draws, ready for JSON, and `answer` what it may ask for afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar


class View(ABC):
    """A view. Subclasses name the live form that draws them, where there is one.

    Attributes:
        kind: the name of the live form; "" where there is none.
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
        """What the live form asks for later: JSON. `ask` is a word of the view's own."""
        raise LookupError(f"{type(self).__name__} does not know {ask!r}")

    def revision(self) -> object:
        """Something that is equal as long as the view would show the same; None for a view that never changes.

        It is asked up to ten times a second while somebody looks, from a thread of its own: it must be cheap.
        """
        return None

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html()

    def _repr_mimebundle_(self, **formats: Any) -> Any:
        """What a notebook saves and shows: the HTML, which a front end with widgets makes live."""
        from .live import bundle

        return bundle(self)
