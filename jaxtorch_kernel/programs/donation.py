"""Which inputs a program may overwrite, and where their new values go.

JAX pairs each donated input with the first output of its shape that is left (`_set_up_aliases`). So in a program that
writes, the new values come first, in the order of the inputs. If another output of the same shape came before, each
input would get another's new value in its memory, and XLA would copy them all.
"""

from __future__ import annotations

import jax


def is_worth_donating(aval: jax.ShapeDtypeStruct) -> bool:
    """Whether an input that is written holds more than a number.

    XLA computes a step count again in each kernel that reads it, from the old count. If the new one had the old one's
    memory, each kernel would need a copy of the old one first.
    """
    return bool(aval.shape)
