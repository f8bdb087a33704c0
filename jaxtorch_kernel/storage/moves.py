"""A counter of in-place changes to the memory or geometry of existing tensors.

`p.data = q`, `set_`, `resize_` and `t_` make such changes. They are rare, and all of them go through one of the
device's kernels. A program that reads many tensors by name checks this number before each run, and inspects the
tensors again only if it has changed. (`torch.utils.swap_tensors` exchanges two tensors without notice, but refuses
tensors to which a program has a weak reference.)
"""

from __future__ import annotations

count = 0


def note() -> None:
    """A tensor was moved, or is moved next, by C code that runs no Python before."""
    global count
    count += 1
