"""Configuration: base options, and scopes that override them.

`config.update` changes the base options for every thread. `with config(...)` opens a scope: it applies only in the
thread that opened it and in the backward passes that this thread starts (torch carries its thread-local objects into
autograd's threads). Scopes may end in any order, as happens with suspended generators: each removes only itself.
While no scope is open, reading the options is a single attribute access.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from . import torch_private as private

F = TypeVar("F", bound=Callable[..., Any])

_KEY = "jaxtorch.config"


@dataclass(frozen=True, eq=False)
class Options:
    """The options and their defaults. Instances are interned (`_changed`), so that program keys compare by identity.

    Attributes:
        fallback: how to run an operator that has neither a lowering nor a decomposition: "warn" runs it on
            the CPU and warns once per operator, "silent" does not warn, "error" raises.
        matmul_precision: "highest", "high" or "default", as `jax.default_matmul_precision`. None follows
            `torch.get_float32_matmul_precision()`.
        check: "indices" checks every index, class target and probability, also in captured code, and raises the
            CPU's error; "none" skips these checks, so that nothing waits for values (docs/differences.md).
    """

    fallback: str = "warn"
    matmul_precision: str | None = None
    check: str = "none"

    def __post_init__(self) -> None:
        for field in fields(self):
            allowed = _ALLOWED[field.name]
            value = getattr(self, field.name)
            if value not in allowed:
                words = ", ".join(repr(a) for a in allowed)
                raise ValueError(
                    f"jaxtorch.config: {field.name} must be one of {words}, not {value!r}."
                )


_ALLOWED: dict[str, tuple[Any, ...]] = {
    "fallback": ("warn", "silent", "error"),
    "matmul_precision": (None, "default", "high", "highest"),
    "check": ("none", "indices"),
}


# What `update` takes besides: of the process, and no part of any program's key.
_PROCESS = ("compile_cache", "max_traces", "peak", "program_memory")


def _positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < float("inf")


def _count(value: Any) -> bool:
    return value is None or (type(value) is int and value >= 1)


# What each of them may be, in words and as a question.
_CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "compile_cache": ("one of True, False", lambda v: v in (True, False)),
    "max_traces": ("a positive whole number or None", _count),
    "peak": (
        "a pair (operations, bytes) per second such as (197e12, 819e9), or None",
        lambda v: v is None or (type(v) is tuple and len(v) == 2 and all(map(_positive, v))),
    ),
    "program_memory": ("a positive whole number of bytes or None", _count),
}


_interned: dict[tuple[Any, ...], Options] = {}


def _changed(options: Options, changes: dict[str, Any]) -> Options:
    """The one Options with these fields changed."""
    new = replace(options, **changes)
    return _interned.setdefault(tuple(getattr(new, f.name) for f in fields(new)), new)


class _Scope:
    """One `with config(...)`; also a decorator. Enter it as often as wanted."""

    def __init__(self, changes: dict[str, Any]):
        self._changes = changes
        self._entered: list[dict[str, Any]] = []

    def __enter__(self) -> Options:
        entry = dict(self._changes)
        self._entered.append(entry)
        config._push(entry)
        return config.options()

    def __exit__(self, *exc: object) -> None:
        config._pop(self._entered.pop())

    def __call__(self, function: F) -> F:
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def generator(*args: Any, **kwargs: Any) -> Any:
                # The scope is open only while the generator's own code runs, never at its `yield`s.
                iterator = function(*args, **kwargs)
                sent = None
                while True:
                    with _Scope(self._changes):
                        try:
                            value = iterator.send(sent)
                        except StopIteration as stop:
                            return stop.value
                    sent = yield value

            return generator  # type: ignore[return-value]

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with _Scope(self._changes):
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


class Config:
    """The configuration, `jaxtorch.config`.

    Example:
        >>> import jaxtorch
        >>> with jaxtorch.config(fallback="error"):
        ...     jaxtorch.config.fallback
        'error'
        >>> jaxtorch.config.fallback
        'warn'
    """

    # A trace past it warns (`capture/retraces.py`).
    max_traces: int | None = 32
    # Operations and bytes a second that the device can do at most (`insight/profile/roofline.py`).
    peak: tuple[float, float] | None = None
    # Bytes of all eager programs together (`programs/kept.py`).
    program_memory: int | None = 1 << 30

    def __init__(self) -> None:
        self._base = _changed(Options(), {})
        self._open = 0
        self._lock = threading.Lock()

    def __call__(self, **changes: Any) -> _Scope:
        """A scope in which these options apply: a context manager and a decorator.

        Raises:
            AttributeError: an option of that name does not exist; the message suggests the closest one.
            ValueError: an option cannot have that value.
        """
        self._check(changes)
        return _Scope(changes)

    def update(self, **changes: Any) -> None:
        """Change options for the whole process; open scopes keep their own.

        In addition to the options of a scope, `compile_cache=True` keeps compiled programs across sessions
        (`compile_cache.py`), and False stops that. `max_traces` is how often a function may be traced before a warning
        explains the retraces (32; None: no warning). `peak=(operations, bytes)` is the device's peak performance per
        second, for the roofline of a profile (None: the known figures of the device). `program_memory` is the limit in
        bytes for all programs of eager operators (1 GiB; None: no limit); the least recently used programs are evicted
        first.
        """
        own = {name: changes.pop(name) for name in _PROCESS if name in changes}
        self._check(changes)
        for name, value in own.items():
            allowed, may_be = _CHECKS[name]
            if not may_be(value):
                raise ValueError(f"jaxtorch.config: {name} must be {allowed}, not {value!r}.")
        if "max_traces" in own:
            self.max_traces = own["max_traces"]
        if "peak" in own:
            self.peak = own["peak"]
        if "program_memory" in own:
            self.program_memory = own["program_memory"]
        if "compile_cache" in own:
            from .compile_cache import compile_cache

            (compile_cache.on if own["compile_cache"] else compile_cache.off)("config")
        with self._lock:
            self._base = _changed(self._base, changes)

    def options(self) -> Options:
        """The options that apply here."""
        if not self._open or not private.is_key_in_tls(_KEY):
            return self._base
        options = self._base
        for entry in private.get_obj_in_tls(_KEY):
            options = _changed(options, entry)
        return options

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self._check({name: None}, values=False)
        return getattr(self.options(), name)

    def __repr__(self) -> str:
        return f"jaxtorch.config({self.options()})"

    def _check(self, changes: dict[str, Any], values: bool = True) -> None:
        for name in changes:
            if name not in _ALLOWED:
                names = (*_ALLOWED, *_PROCESS) if values else tuple(_ALLOWED)
                near = difflib.get_close_matches(name, names, 1, 0.4)
                hint = f" Did you mean `{near[0]}`?" if near else ""
                known = ", ".join(sorted(names))
                raise AttributeError(
                    f"jaxtorch.config has no `{name}`.{hint} Its options: {known}."
                )
        if values:
            Options(**changes)

    # The open scopes of a thread are an immutable tuple: autograd's threads get a snapshot of it.
    def _push(self, entry: dict[str, Any]) -> None:
        stack = private.get_obj_in_tls(_KEY) if private.is_key_in_tls(_KEY) else ()
        private.stash_obj_in_tls(_KEY, (*stack, entry))
        with self._lock:
            self._open += 1

    def _pop(self, entry: dict[str, Any]) -> None:
        stack = private.get_obj_in_tls(_KEY) if private.is_key_in_tls(_KEY) else ()
        private.stash_obj_in_tls(_KEY, tuple(e for e in stack if e is not entry))
        with self._lock:
            self._open -= 1


config = Config()
