"""Drawings of a profile without a script: bars that break down the time, and a flame graph of module paths.

Everything that comes from a user is escaped. The colours work on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from .profile_data import COLOURS, Phases, phases
from .units import duration, share

if TYPE_CHECKING:
    from jaxtorch.insight.profile.summary import ModuleTime, Profile

_FORWARD, _BACKWARD = COLOURS["forward"], COLOURS["backward"]
_LEFT = "white-space:nowrap;text-align:left;padding:1px 14px 1px 0;vertical-align:top"


def bars(profile: Profile) -> str:
    """The wall time broken down, for the device and for the thread that ran the code."""
    bars = "".join(_bar(group, profile.wall) for group in phases(profile))
    return f'<table style="border-collapse:collapse;width:100%;font-size:12px;margin:4px 0">{bars}</table>'


def _bar(group: Phases, whole: float) -> str:
    pieces, labels = [], []
    for part in group.parts:
        if not part.time:
            continue
        percent = 100 * part.time / whole if whole else 0
        labels.append(
            f'<span style="white-space:nowrap;margin-right:12px"><span style="display:inline-block;width:9px;'
            f'height:9px;background:{part.colour}"></span> {part.name} {duration(part.time)} '
            f"{share(part.time, whole)}</span>"
        )
        pieces.append(
            f'<div style="width:{percent:.2f}%;background:{part.colour};height:10px"></div>'
        )
    return (
        f'<tr><th scope="row" style="{_LEFT};width:6em;font-weight:400">{group.who}</th><td style="text-align:left">'
        f'<div style="display:flex;width:100%">{"".join(pieces)}</div>{"".join(labels)}</td></tr>'
    )


def flame(profile: Profile, most: int) -> str:
    """A flame graph of module paths. The width of a bar is the module's share; its submodules are below it.

    Args:
        most: how many bars there may be: those with the most time.
    """
    if not profile.tree.children:
        return ""
    legend = (
        f'<div style="font-size:12px"><span style="color:{COLOURS["forward"]}">■</span> forward '
        f'<span style="color:{COLOURS["backward"]}">■</span> backward</div>'
    )
    style = "font-size:11px;line-height:16px;white-space:nowrap;text-align:left"
    times = sorted((node.time.total for node in _nodes(profile.tree)), reverse=True)
    least = max([profile.device / 500, *times[most : most + 1]])
    return f'{legend}<div style="{style}">{_flame(profile.tree, profile.device, least)}</div>'


def _nodes(node: ModuleTime) -> Iterator[ModuleTime]:
    yield node
    for child in node.children:
        yield from _nodes(child)


def _flame(node: ModuleTime, whole: float, least: float, depth: int = 0) -> str:
    if depth > 12 or not node.time.total:
        return ""
    back = 100 * node.time.backward / node.time.total
    label = escape(node.name)
    hint = escape(
        f"{node.name}: {duration(node.time.total)} ({share(node.time.total, whole)}), "
        f"backward {duration(node.time.backward)}, itself {duration(node.self_time.total)}",
        quote=True,
    )
    split = f"{100 - back:.0f}%"
    bar = (
        f'<div title="{hint}" style="background:linear-gradient(90deg,{_FORWARD}66 {split},{_BACKWARD}66 {split});'
        f'height:16px;margin:0 1px 1px 0;padding-left:3px;overflow:hidden;text-overflow:ellipsis">{label} '
        f"{share(node.time.total, whole)}</div>"
    )
    inner = "".join(
        f'<div style="width:{100 * child.time.total / node.time.total:.3f}%;min-width:0">{below}</div>'
        for child in node.children
        if child.time.total > least and (below := _flame(child, whole, least, depth + 1))
    )
    return bar + (f'<div style="display:flex;width:100%">{inner}</div>' if inner else "")
