"""`%%jax profile`: where the time of a cell went."""

from __future__ import annotations

import json
from collections.abc import Mapping

from jaxtorch.insight.profile.perfetto import trace

from .page import File, Page
from .page_html import page_html
from .page_text import page_text
from .profile_data import packed
from .profile_page import FULL, SAVED, Detail, page
from .profiled import ProfiledView
from .protocol import Data, Json, plain
from .saved import fitting
from .standalone import standalone


class ProfileView(ProfiledView):
    """Shows a `Profile`. `data()` is a `ProfileData` (`profile_data.py`).

    `answer("save", {form})` is a `File`: a Perfetto trace ("perfetto") or a self-contained page ("page").
    """

    kind = "profile"
    full = False  # whether the HTML may be of any size

    def complete(self) -> ProfileView:
        """The view for a file, which leaves out less than what a notebook saves."""
        view = ProfileView(self.profile, self.title, self.first)
        view.full = True
        return view

    def text(self) -> str:
        return page_text(self._page(FULL))

    def html(self) -> str:
        details = (FULL,) if self.full else SAVED
        return fitting(lambda detail: page_html(self._page(detail), bounded=False), details)

    def _page(self, detail: Detail) -> Page:
        """The page that the static forms show. The live form has its own layout, with linked charts and tables."""
        return page(self.profile, self.title, self.first, detail)

    def data(self) -> Data:
        return dict(plain(packed(self.profile, self.title, self.first)))

    def answer(self, ask: str, arguments: Mapping[str, Json]) -> object:
        if ask != "save":
            return super().answer(ask, arguments)
        name = "".join(c if c.isalnum() else "_" for c in self.title).strip("_")[:40] or "profile"
        if arguments.get("form") == "page":
            return File(f"{name}.html", standalone(self.complete(), self.title))
        return File(f"{name}.perfetto.json", json.dumps(trace(self.profile)))
