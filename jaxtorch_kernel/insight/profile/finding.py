"""The finding of a profile in a sentence, and how much of the run was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .sources import line_label, text_of

if TYPE_CHECKING:
    from .summary import Profile, ProfileRow

_MUCH = 0.2  # of the wall time: a larger share is mentioned
_LONGEST = 60  # characters of a line of code


def finding(profile: Profile, first: str = "") -> str:
    """A sentence on the slowest line, the idle time of the device, and the activity of the calling thread meanwhile.

    Args:
        first: the file of the profiled cell, whose lines need no name.
    """
    parts = [part for part in (_slowest(profile, first), _idle(profile)) if part]
    return f"{'; '.join(parts)}." if parts else "Nothing ran on the device."


def _slowest(profile: Profile, first: str) -> str:
    lines = [row for row in profile.lines if row.time.total > 0]
    if lines:
        row = max(lines, key=lambda row: row.time.total)
        return f"{_percent(row.time.total / profile.device)} of the device's time is {_named(row, first)}"
    if profile.operators and profile.device:
        row = profile.operators[0]
        share = _percent(row.time.total / profile.device)
        return f"{share} of the device's time is `{row.name}`, whose line is unknown"
    return ""


def _named(row: ProfileRow, first: str) -> str:
    location = row.location
    assert location is not None
    place = f"line {location.line}" if location.file == first else line_label(location)
    text = text_of(location).replace("`", "'")
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 1]}…"
    return f"`{text}`, {place}" if text else place


def _idle(profile: Profile) -> str:
    if not profile.device or not profile.wall:
        return ""
    idle = profile.idle / profile.wall
    host = profile.host
    busiest, time = max(
        (
            ("compiles", host.compile),
            ("launches programs", host.dispatch),
            ("moves data", host.transfer),
            ("runs Python", host.python),
        ),
        key=lambda activity: activity[1],
    )
    said = f"the device idles {_percent(idle)}"
    if idle < _MUCH or time < _MUCH * profile.wall:
        return said
    return f"{said}, and this thread {busiest} {_percent(time / profile.wall)}"


def extent(profile: Profile) -> str:
    """A sentence on what was recorded of a run in which the profiler paused; "" if it did not."""
    recording = profile.recording
    if recording.recorded > 0.99 * recording.total:
        return ""
    parts = len(recording.windows)
    return (
        f"The profiler ran for {recording.recorded / 1e9:.1f} s of {recording.total / 1e9:.1f} s, in {parts} "
        f"part{'s' if parts > 1 else ''}: times and counts are estimates for the whole run."
    )


def _percent(share: float) -> str:
    """
    Example:
        >>> _percent(0.5449), _percent(0.004), _percent(0)
        ('54%', '0.4%', '0%')
    """
    return f"{100 * share:.0f}%" if share >= 0.01 or not share else f"{100 * share:.1g}%"
