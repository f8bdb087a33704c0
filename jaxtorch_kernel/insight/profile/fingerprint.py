"""Identifies the executable of a run. XLA numbers the runs of an executable, starting at a hash of its fingerprint.

A profile has the number of each run (`run_id`). The first run of an executable has the lower half of the
`Fingerprint64` of its fingerprint as its number, and each later launch adds 1, modulo 2**32. So the number identifies
both the executable and the launch. The program id identifies neither: an executable from the persistent cache keeps the
id that it got in the process that compiled it. `Fingerprint64` is a function of FarmHash. A fingerprint is a 128-bit
number in decimal, which nearly always has more than 32 digits.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_K2 = 0x9AE16A3B2F90404F
_LAUNCHES = 1 << 24  # assumed upper bound on the launches of one executable


def first_run(fingerprint: bytes) -> int | None:
    """The number of an executable's first run; None if the length of the fingerprint is not supported."""
    if not fingerprint:
        return _K2 & 0xFFFFFFFF
    return _fingerprint64(fingerprint) & 0xFFFFFFFF if 32 < len(fingerprint) <= 64 else None


def nth_run(run: int, first: int) -> int | None:
    """The number of earlier launches of an executable; None if the run belongs to another one."""
    nth = (run - first) & 0xFFFFFFFF
    return nth if nth < _LAUNCHES else None


def _fingerprint64(data: bytes) -> int:
    """FarmHash's `Fingerprint64` of 33 to 64 bytes."""
    factor = _K2 + 2 * len(data)
    a, b = _word(data, 0) * _K2 & _MASK, _word(data, 8)
    c, d = _word(data, -8) * factor & _MASK, _word(data, -16) * _K2 & _MASK
    y = (_turned(a + b & _MASK, 43) + _turned(c, 30) + d) & _MASK
    z = _mixed(y, (a + _turned(b + _K2 & _MASK, 18) + c) & _MASK, factor)
    e, f = _word(data, 16) * factor & _MASK, _word(data, 24)
    g = (y + _word(data, -32)) * factor & _MASK
    h = (z + _word(data, -24)) * factor & _MASK
    left = (_turned(e + f & _MASK, 43) + _turned(g, 30) + h) & _MASK
    right = (e + _turned(f + a & _MASK, 18) + g) & _MASK
    return _mixed(left, right, factor)


def _mixed(u: int, v: int, factor: int) -> int:
    a = (u ^ v) * factor & _MASK
    a ^= a >> 47
    b = (v ^ a) * factor & _MASK
    return (b ^ b >> 47) * factor & _MASK


def _word(data: bytes, at: int) -> int:
    """Eight bytes; `at` below zero counts from the end."""
    at %= len(data)
    return int.from_bytes(data[at : at + 8], "little")


def _turned(value: int, bits: int) -> int:
    return (value >> bits | value << 64 - bits) & _MASK
