"""The words of `%jax`, and what to say to a word that is none of them."""

from __future__ import annotations

import difflib

WORDS = ("on", "off", "status", "seed")


def nearest(word: str) -> str:
    """The word of `%jax` that is most like this one.

    Example:
        >>> from jaxtorch.magics.words import nearest
        >>> nearest("stats")
        'status'
    """
    return max(WORDS, key=lambda known: difflib.SequenceMatcher(None, word.lower(), known).ratio())
