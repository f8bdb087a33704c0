"""The base class of the profile views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtorch.insight.profile.sources import CodeSource, annotate

from .view import View

if TYPE_CHECKING:
    from jaxtorch.insight.profile.summary import Profile


class ProfiledView(View):
    """A view of a `Profile`.

    Args:
        title: what was profiled.
        first: the file of the profiled cell, which is shown first.
    """

    def __init__(self, profile: Profile, title: str = "", first: str = ""):
        self.profile, self.title, self.first = profile, title, first

    def complete(self) -> ProfiledView:
        """The view for a file, which may leave out less than what a notebook saves."""
        return self

    def sources(self) -> list[CodeSource]:
        """The source code with its times."""
        return annotate(self.profile, self.first)
