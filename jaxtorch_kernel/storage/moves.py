"""A counter of in-place changes to the memory or geometry of existing tensors.

`p.data = q`, `set_`, `resize_` and `t_` make such changes. They are rare, and each goes through a kernel of the device.
A program that reads many tensors by name compares this number before each run, and checks the tensors again only if
it has changed. (`torch.utils.swap_tensors` is not counted, but it refuses tensors with weak references, which a program
holds.)
"""

from __future__ import annotations

count = 0


def note() -> None:
    """Count a change: one just made, or one that torch's C++ makes right after this call."""
    global count
    count += 1
