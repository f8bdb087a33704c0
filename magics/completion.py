"""Tab completion of the words of `%jax`."""

from __future__ import annotations

import re

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)

from .words import WORDS

_LINE = re.compile(r"(?:^|[\s=])%jax\s+(?P<before>(?:\S+\s+)*)(?P<word>\S*)$")


@context_matcher(identifier="jaxtorch")
def complete_jax(context: CompletionContext) -> SimpleMatcherResult:
    """The words that can stand at the cursor of a `%jax` line; nothing else is offered there."""
    found = _LINE.search(context.line_with_cursor[: context.cursor_position])
    if found is None:
        return {"completions": []}
    words = [] if found["before"] else [w for w in WORDS if w.startswith(found["word"])]
    return {
        "completions": [SimpleCompletion(text=word, type="magic") for word in words],
        "matched_fragment": found["word"],
        "suppress": True,
        "ordered": True,
    }
