"""`%jax cache`: what was compiled in this session, and why it was compiled again."""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from typing import Any

from jaxtorch.insight import events
from jaxtorch.insight.programs import ProgramInfo, keep, kept, kept_count, program
from jaxtorch.insight.recompiles import FunctionInfo, Total, clear, functions, named, totals
from jaxtorch.programs import stats

from . import cache_page
from .cache_page import most, peak, programs_of
from .places import place_data, place_id, where
from .view import View

# Sort key -> its value, and whether the order is descending.
SORTS: dict[str, tuple[Callable[[FunctionInfo], Any], bool]] = {
    "order": (lambda f: f.programs[0].id, False),
    "name": (lambda f: f.name.lower(), False),
    "calls": (lambda f: f.calls, True),
    "hits": (lambda f: f.hits, True),
    "traced": (lambda f: f.traces, True),
    "trace": (lambda f: sum(p.trace_seconds for p in f.programs), True),
    "lowering": (lambda f: sum(p.lowering_seconds for p in f.programs), True),
    "xla": (lambda f: sum(p.xla_seconds for p in f.programs), True),
    "time": (lambda f: f.seconds, True),
    "memory": (lambda f: most(f, peak) or 0, True),
    "flops": (lambda f: most(f, lambda p: p.flops) or 0, True),
}
_MOST_SITES = 100  # lines in the live form, most expensive first
_PERIOD = 1.0  # seconds


class CacheView(View):
    """The compiled programs of the session, grouped by function.

    `data()`; times are in seconds, sizes in bytes, unknown values are null:

    | key | what |
    | --- | --- |
    | recording | whether JAX's own programs and calls of eager operators are recorded |
    | sort, filter | the initial sort column of `rows` ("" for the given order) and filter words |
    | total | {programs, functions, retraced, evicted, trace, lowering, xla} |
    | rows | functions; their keys are below |
    | cells, sites | compile time by cell and by line, most expensive first; their keys are below |

    A row is `id`, `name`, `kind`; `place` (its last line, as text), `file`, `line`, `cell`; `calls`, `hits`, `traces`;
    `trace`, `lowering`, `xla`, `seconds`; `code`, `memory`, `flops` (the maximum over its programs, for one run);
    `signature` (the last, as text); `cached` (how many programs came from the persistent cache), `keeps` (how many have
    their text kept); `why` (the retraces: {nth, place, what: [...], advice: [...]}, an advice may be "");
    `programs`, without the `left_out` earliest ones.

    A program is `id`, `name`, `place`, `calls`, `trace`, `lowering`, `xla`, `seconds`, `code`, `memory`, `flops`;
    `part`: "", "saving" (a forward pass that saves residuals) or "backward"; `signature`: [...]; `persistent_hit`,
    `alive`, `kept`; `reason` (text).

    A cell or site is `id`, `place` (as text), `file`, `line`, `cell`, `programs` (a count), `seconds`.

    `answer(ask, arguments)`:

    | ask | arguments | answer |
    | --- | --- | --- |
    | clear | function (a row's id); none clears all | null |
    | keep | program (an id) | null; the text of the program is kept from then on |
    """

    kind = "cache"

    def __init__(self, sort: str = "order", filter: str = "", all_of_them: bool = False):
        self.sort, self.filter, self.all_of_them = sort, filter, all_of_them
        self._looked = 0.0
        self._counts: object = None

    def functions(self) -> list[FunctionInfo]:
        """The functions to show, in order."""
        words = self.filter.lower().split()
        found = [f for f in functions(self.all_of_them) if all(word in _words(f) for word in words)]
        key, greatest_first = SORTS[self.sort]
        return sorted(found, key=key, reverse=greatest_first)

    # -- text and HTML ----------------------------------------------------------------------------------------

    def text(self) -> str:
        found = self.functions()
        if not found:
            return self._nothing()
        return "\n".join(cache_page.lines(found))

    def html(self) -> str:
        found = self.functions()
        if not found:
            return f"<p>{escape(self._nothing())}</p>"
        return cache_page.page(found)

    def _nothing(self) -> str:
        if self.filter and functions(self.all_of_them):
            return f"No compiled program has {self.filter!r} in its name, kind or place."
        return "Nothing has been compiled in this session yet."

    # -- live -------------------------------------------------------------------------------------------------

    def revision(self) -> object:
        known = list(stats.compiled)
        now = time.monotonic()
        # New programs show at once, call counts once a second: drawing takes milliseconds.
        if now - self._looked > _PERIOD:
            sources = {id(r.cause.function): r.cause.function for r in known}
            hits = sum(source.hits for source in sources.values())
            self._looked, self._counts = now, (sum(r.calls for r in known), hits)
        return len(known), sum(r.cleared for r in known), kept_count(), stats.evicted, self._counts

    def data(self) -> dict[str, Any]:
        found = functions(self.all_of_them)
        known = programs_of(found)
        return {
            "recording": events.recording(),
            "sort": {"order": "", "traced": "traces", "time": "seconds"}.get(self.sort, self.sort),
            "filter": self.filter,
            "total": {
                "programs": len(known),
                "functions": len(found),
                "retraced": sum(len(f.retraces) for f in found),
                "evicted": stats.evicted,
                "trace": sum(p.trace_seconds for p in known),
                "lowering": sum(p.lowering_seconds for p in known),
                "xla": sum(p.xla_seconds for p in known),
            },
            "rows": [_row(f) for f in found],
            "cells": [_total_data(t, True) for t in totals(known, by_cell=True)],
            "sites": [_total_data(t, False) for t in totals(known)[:_MOST_SITES]],
        }

    def answer(self, ask: str, arguments: dict[str, Any]) -> Any:
        if ask == "clear":
            one = arguments.get("function")
            clear(functions(all_of_them=True) if one is None else named(f"#{one}"))
            return None
        if ask == "keep":
            return keep(program(arguments["program"]))
        return super().answer(ask, arguments)


def _row(function: FunctionInfo) -> dict[str, Any]:
    known = function.programs
    captured = function.kind not in ("eager", "jax.jit", "engine")
    return {
        "id": function.id,
        "name": function.name,
        "kind": function.kind,
        **place_data(function.place),
        "calls": function.calls if captured or function.calls else None,
        "hits": function.hits if captured else None,
        "traces": function.traces or None,
        "trace": sum(p.trace_seconds for p in known),
        "lowering": sum(p.lowering_seconds for p in known),
        "xla": sum(p.xla_seconds for p in known),
        "seconds": function.seconds,
        "code": most(function, lambda p: p.code_bytes),
        "memory": most(function, peak),
        "flops": most(function, lambda p: p.flops),
        "signature": ", ".join(known[-1].signature),
        "cached": sum(p.persistent_hit is True for p in known),
        "keeps": sum(map(kept, known)),
        "why": [
            {"nth": r.nth, "place": where(r.place), "what": list(r.what), "advice": list(r.advice)}
            for r in function.retraces
        ],
        "programs": [_program_data(p) for p in known[-cache_page.MOST_PROGRAMS :]],
        "left_out": max(0, len(known) - cache_page.MOST_PROGRAMS),
    }


def _program_data(info: ProgramInfo) -> dict[str, Any]:
    memory = info.memory()
    return {
        "id": info.id,
        "name": info.name,
        "part": info.part,
        "place": where(info.place),
        "calls": info.calls,
        "trace": info.trace_seconds,
        "lowering": info.lowering_seconds,
        "xla": info.xla_seconds,
        "seconds": info.seconds,
        "code": None if memory is None else memory.code,
        "memory": None if memory is None else memory.peak,
        "flops": info.flops,
        "signature": list(info.signature),
        "persistent_hit": info.persistent_hit,
        "alive": info.alive,
        "kept": kept(info),
        "reason": info.reason,
    }


def _total_data(total: Total, by_cell: bool) -> dict[str, Any]:
    place = place_data(total.place) | {"place": where(total.place, by_cell)}
    return {
        "id": place_id(total.place, by_cell),
        **place,
        "programs": total.programs,
        "seconds": total.seconds,
    }


def _words(function: FunctionInfo) -> str:
    """The text that a filter searches."""
    names = {p.name for p in function.programs}
    return " ".join([function.name, function.kind, where(function.place), *names]).lower()
