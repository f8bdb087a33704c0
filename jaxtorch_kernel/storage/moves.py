"""How often a tensor that was there got other memory or another geometry in place.

`p.data = q`, `set_`, `resize_`, `t_` do so, are rare, and all of them pass a kernel of ours. A program that reads many
tensors by name asks this number before each run, and looks at the tensors again only where it has changed.
(`torch.utils.swap_tensors` exchanges two tensors unseen, but refuses those to which a program has a weak reference.)
"""

from __future__ import annotations

count = 0


def note() -> None:
    """A tensor was moved, or is moved next, by C code that runs no Python before."""
    global count
    count += 1
