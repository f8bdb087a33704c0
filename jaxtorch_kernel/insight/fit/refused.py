"""Programs that the compiler refuses because they do not fit: the memory by its message and the program's inputs."""

from __future__ import annotations

import math
import re
from collections import Counter

from ...capture.lowering import Lowered
from .memory import KINDS, Kind, KindMemory

_OUT_OF_MEMORY = re.compile(r"CompileTimeHbmOom|Ran out of memory")
_TEMPORARIES = re.compile(r"HLO temporaries \(([\d.]+)([KMG]?)\)")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def is_out_of_memory(message: str) -> bool:
    """Whether the compiler refused a program because it needs more memory than there is."""
    return _OUT_OF_MEMORY.search(message) is not None


def temporaries(message: str) -> int:
    """The bytes of temporaries that the compiler's message states; 0 if it states none.

    Example:
        >>> from jaxtorch.insight.fit.refused import temporaries
        >>> temporaries("the total memory required for HLO temporaries (24.00G) exceeds available HBM (15.75G)")
        25769803776
    """
    found = _TEMPORARIES.search(message)
    return int(float(found[1]) * _UNITS[found[2]]) if found else 0


def memory_of(lowered: Lowered, message: str) -> list[KindMemory]:
    """The memory of a refused program: that of its inputs by their shapes, and the temporaries of the message."""
    found: Counter[Kind] = Counter()
    for (_, role), aval in zip(lowered.inputs, lowered.avals, strict=True):
        shape = tuple(aval.shape)
        if aval.sharding is not None:
            shape = aval.sharding.shard_shape(shape)
        found[KINDS[role]] += math.prod(shape) * aval.dtype.itemsize
    rows = [KindMemory(kind, count) for kind, count in found.items()]
    return [*rows, KindMemory("temporaries", temporaries(message))]
