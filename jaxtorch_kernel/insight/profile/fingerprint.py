"""Which executable a run belongs to: XLA numbers an executable's runs from a hash of its fingerprint on.

The number of a run (`run_id` in a profile) is the number of launches of its executable so far plus the lower half of
`Fingerprint64` of the executable's fingerprint, in 32 bits. So a run names its executable and its place among the
launches, where a program's id does not: an executable from the persistent cache runs under the id of the process that
compiled it. `Fingerprint64` is FarmHash's, for the lengths that fingerprints have.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_LAUNCHES = 1 << 28  # of one executable: less than this


def first_run(fingerprint: bytes) -> int | None:
    """The number of an executable's first run; None for a fingerprint of an unusual length."""
    if len(fingerprint) > 64:
        return None
    return fingerprint64(fingerprint) & 0xFFFFFFFF


def nth_run(run: int, first: int) -> int | None:
    """How many launches of an executable were before this run; None for a run of another one."""
    nth = (run - first) & 0xFFFFFFFF
    return nth if nth < _LAUNCHES else None


def fingerprint64(data: bytes) -> int:
    """FarmHash's `Fingerprint64` of at most 64 bytes."""
    length = len(data)
    if length > 64:
        raise ValueError(f"at most 64 bytes, not {length}")
    if length <= 16:
        return _short(data, length)
    factor = _K2 + 2 * length
    a, b = _word(data, 0) * (_K1 if length <= 32 else _K2) & _MASK, _word(data, 8)
    c, d = _word(data, length - 8) * factor & _MASK, _word(data, length - 16) * _K2 & _MASK
    y = (_turned(a + b & _MASK, 43) + _turned(c, 30) + d) & _MASK
    z = (a + _turned(b + _K2 & _MASK, 18) + c) & _MASK
    if length <= 32:
        return _mixed(y, z, factor)
    z = _mixed(y, z, factor)
    e, f = _word(data, 16) * factor & _MASK, _word(data, 24)
    g = (y + _word(data, length - 32)) * factor & _MASK
    h = (z + _word(data, length - 24)) * factor & _MASK
    left = (_turned(e + f & _MASK, 43) + _turned(g, 30) + h) & _MASK
    right = (e + _turned(f + a & _MASK, 18) + g) & _MASK
    return _mixed(left, right, factor)


def _short(data: bytes, length: int) -> int:
    factor = _K2 + 2 * length
    if length >= 8:
        a, b = (_word(data, 0) + _K2) & _MASK, _word(data, length - 8)
        c = (_turned(b, 37) * factor + a) & _MASK
        d = (_turned(a, 25) + b) * factor & _MASK
        return _mixed(c, d, factor)
    if length >= 4:
        first, last = (int.from_bytes(data[i : i + 4], "little") for i in (0, length - 4))
        return _mixed((length + (first << 3)) & _MASK, last, factor)
    if not length:
        return _K2
    y = data[0] + (data[length >> 1] << 8)
    z = length + (data[-1] << 2)
    x = (y * _K2 & _MASK) ^ (z * _K0 & _MASK)
    return (x ^ x >> 47) * _K2 & _MASK


def _mixed(u: int, v: int, factor: int) -> int:
    a = (u ^ v) * factor & _MASK
    a ^= a >> 47
    b = (v ^ a) * factor & _MASK
    return (b ^ b >> 47) * factor & _MASK


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _turned(value: int, bits: int) -> int:
    return (value >> bits | value << 64 - bits) & _MASK
