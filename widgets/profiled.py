"""What the views of a profile share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtorch.insight.profile.sources import Source, annotate

from .view import View

if TYPE_CHECKING:
    from jaxtorch.insight.profile.summary import Profile


class ProfiledView(View):
    """A view of a `Profile`.

    Args:
        title: what was profiled.
        first: the file of the cell that was, which stands before the others.
    """

    def __init__(self, profile: Profile, title: str = "", first: str = ""):
        self.profile, self.title, self.first = profile, title, first

    def sources(self) -> list[Source]:
        """The code with its times."""
        return annotate(self.profile, self.first)
