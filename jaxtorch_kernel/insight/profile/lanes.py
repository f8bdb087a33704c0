"""Readable names of a profile's lanes, which are threads and streams."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

CALLING = "this thread"
BACKWARD = "backward thread"

# Pattern for the name of a thread in XLA or torch (without its pool's address) -> its purpose. The first match counts.
_KNOWN = (
    (r"^XLAPjRtCpuClient", "device queue"),
    (r"^XLAEigen", "device worker"),
    (r"^pt_autograd", BACKWARD),
    (r"^(python|ipython|ipykernel)", "other thread"),
    (r"(?i)llvm|compil", "compiler"),
)
_STREAM = re.compile(
    r"^(?P<kind>[A-Za-z]+):(?P<number>\d+) (Stream #(?P<stream>\d+))?(?P<rest>.*)$"
)


@dataclass(frozen=True)
class Lane:
    """A sequence of events in time: a thread, or a stream of a device."""

    name: str
    device: bool

    @property
    def backward(self) -> bool:
        """Whether it is a thread in which torch runs the backward passes of other threads."""
        return self.name.startswith(BACKWARD)


def lanes_of(
    keys: list[tuple[str, str, int]], device: list[bool], calling: int
) -> tuple[Lane, ...]:
    """The lanes with these (plane, line, number); `calling` is the index of the calling thread.

    Example:
        >>> keys = [("/host:CPU", "tf_XLAEigen/-12", 1), ("/host:CPU", "tf_XLAEigen/34", 1), ("/host:CPU", "python", 1)]
        >>> [lane.name for lane in lanes_of(keys, [True, True, False], 2)]
        ['device worker 1', 'device worker 2', 'this thread']
    """
    names = [
        CALLING if i == calling else plain_name(plane, line)
        for i, (plane, line, _) in enumerate(keys)
    ]
    often, seen = Counter(names), Counter[str]()
    lanes = []
    for name, on_device in zip(names, device, strict=True):
        seen[name] += 1
        lanes.append(Lane(f"{name} {seen[name]}" if often[name] > 1 else name, on_device))
    return tuple(lanes)


def plain_name(plane: str, line: str) -> str:
    """The name of a lane in plain words; an unknown one keeps its own, without the address of its thread pool.

    Example:
        >>> plain_name("/host:CPU", "tf_XLAPjRtCpuClient/-7455935508566668832")
        'device queue'
        >>> plain_name("/device:GPU:0", "Stream #13(Compute,MemcpyD2D)")
        'GPU 0, stream 13 (Compute,MemcpyD2D)'
        >>> plain_name("/device:TPU:0", "XLA Ops")
        'TPU 0, XLA Ops'
    """
    if plane.startswith("/device:"):
        match = _STREAM.match(f"{plane.removeprefix('/device:')} {line}")
        if match is None:
            return f"{plane.removeprefix('/device:')} {line}"
        stream = f"stream {match['stream']} " if match["stream"] else ""
        return f"{match['kind']} {match['number']}, {stream}{match['rest']}".strip()
    name = re.sub(r"^tf_|/-?\d+$", "", line)
    return next((plain for pattern, plain in _KNOWN if re.search(pattern, name)), name)
