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
from collections.abc import Callable, Collection, Iterable
from dataclasses import Field, asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

from . import torch_private as private

F = TypeVar("F", bound=Callable[..., Any])

_KEY = "jaxtorch.config"


def _option(
    default: Any,
    allowed: str,
    is_allowed: Callable[[Any], bool],
    help: str,
    values: tuple[object, ...] = (),
) -> Any:
    """A field of the table of options.

    Args:
        default: its default value.
        allowed, is_allowed: the allowed values, in words and as a check.
        help: its meaning.
        values: the values that completion offers; None and the default if left out.
    """
    metadata = {
        "allowed": allowed,
        "is_allowed": is_allowed,
        "help": help,
        "values": values or tuple(dict.fromkeys((default, None))),
    }
    return field(default=default, metadata=metadata)


def _one_of(*values: Any, help: str) -> Any:
    """An option with one of `values`; the first is the default."""
    allowed = f"one of {', '.join(map(repr, values))}"
    return _option(values[0], allowed, lambda v: v in values, help, values)


def _positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < float("inf")


def _count(value: Any) -> bool:
    return value is None or (type(value) is int and value >= 1)


@dataclass(frozen=True, eq=False)
class Options:
    """The options that change compilation. A scope may set them, and they are part of every program's key.

    Instances are interned (`_changed`), so that keys compare them by identity.

    Attributes:
        fallback: how to run an operator that has neither a lowering nor a usable decomposition: "warn" runs
            it on the CPU and warns once per operator, "silent" does not warn, "error" raises.
        matmul_precision: "highest", "high" or "default", as `jax.default_matmul_precision`. None follows
            `torch.get_float32_matmul_precision()`.
        check: "indices" checks every index, class target and probability, also in captured code, and raises the
            CPU's error; "none" skips these checks, so that nothing waits for values (docs/differences.md).
    """

    fallback: str = _one_of(
        "warn",
        "silent",
        "error",
        help="what happens when the device does not implement an operator: 'warn', 'silent', 'error'",
    )
    matmul_precision: str | None = _one_of(
        None,
        "default",
        "high",
        "highest",
        help="None (torch's own setting), 'default', 'high', 'highest'",
    )
    check: str = _one_of(
        "none",
        "indices",
        help="'indices': check every index, class target and probability; 'none'",
    )


@dataclass
class ProcessOptions:
    """The options of the whole process. They are not part of any program's key.

    Attributes:
        max_traces: how often a function may be traced before a warning explains the retraces; None: no warning.
        peak: the most operations and bytes per second that the device can process, for the roofline of a profile;
            None: the known figures of the device.
        program_memory: the limit in bytes for all programs of eager operators together; None: no limit.
        compile_cache: whether compiled programs are kept on disk across sessions.
        execution: "immediate" runs each operator when it is called; "deferred" records operators and runs them together
            (docs/execution.md).
        tracebacks: "short" shows of an error only the frames of the user and of the libraries that they call, in a
            notebook with the extension and at the end of a script; "full" also those of jaxtorch and what it calls.
    """

    max_traces: int | None = _option(
        32,
        "a positive whole number or None",
        _count,
        "a function traced more often than this warns and says why; None: never",
    )
    peak: tuple[float, float] | None = _option(
        None,
        "a pair (operations, bytes) per second such as (197e12, 819e9), or None",
        lambda v: v is None or (type(v) is tuple and len(v) == 2 and all(map(_positive, v))),
        "roofline of the device: operations/s, bytes/s, as in peak=197e12,819e9; None: the built-in values",
    )
    program_memory: int | None = _option(
        1 << 30,
        "a positive whole number of bytes or None",
        _count,
        "limit in bytes for programs of eager operators, least recently used are dropped first; None: no limit",
    )
    compile_cache: bool = _one_of(
        False, True, help="keep compiled programs on disk across sessions"
    )
    execution: str = _one_of(
        "immediate",
        "deferred",
        help="'deferred': record operators, and run those of a training step together; 'immediate'",
    )
    tracebacks: str = _one_of(
        "short",
        "full",
        help="'full': errors show jaxtorch's frames too (`%tb` shows the last error again); 'short'",
    )


OPTIONS: dict[str, Field[Any]] = {f.name: f for f in (*fields(Options), *fields(ProcessOptions))}
_SCOPED = frozenset(f.name for f in fields(Options))


_interned: dict[tuple[Any, ...], Options] = {}


def _changed(options: Options, changes: dict[str, Any]) -> Options:
    """The interned Options with these fields changed."""
    new = replace(options, **changes)
    return _interned.setdefault(tuple(getattr(new, f.name) for f in fields(new)), new)


class _Scope:
    """One `with config(...)`, also usable as a decorator. It may be entered repeatedly."""

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

    def __init__(self) -> None:
        self._base = _changed(Options(), {})
        self._process = ProcessOptions()
        self._open = 0
        self._lock = threading.Lock()
        # Called with a new value of `execution`; set when the device starts (`deferred/switch.py`).
        self.on_execution: Callable[[str], None] = lambda execution: None

    def __call__(self, **changes: Any) -> _Scope:
        """A scope in which these options apply: a context manager and a decorator.

        Raises:
            AttributeError: an option of that name does not exist; the message suggests the closest one.
            ValueError: an option cannot have that value.
        """
        self._check(changes, _SCOPED)
        return _Scope(changes)

    def update(self, **changes: Any) -> None:
        """Change options for the whole process; open scopes keep their own.

        It sets the options of a scope (`Options`) and those of the process (`ProcessOptions`). `compile_cache=True`
        keeps compiled programs across sessions (`compile_cache.py`), and False stops that.

        Raises:
            AttributeError: an option of that name does not exist; the message suggests the closest one.
            ValueError: an option cannot have that value; no option is changed.
        """
        self._check(changes, OPTIONS)
        scoped = {name: changes.pop(name) for name in [*changes] if name in _SCOPED}
        if "compile_cache" in changes:
            from .compile_cache import compile_cache

            (compile_cache.on if changes["compile_cache"] else compile_cache.off)("config")
        for name, value in changes.items():
            setattr(self._process, name, value)
        if "execution" in changes:
            self.on_execution(changes["execution"])
        with self._lock:
            self._base = _changed(self._base, scoped)

    def values(self) -> dict[str, Any]:
        """All options and their values here."""
        from .compile_cache import compile_cache

        process = asdict(self._process) | {"compile_cache": compile_cache.active}
        return asdict(self.options()) | process

    def options(self) -> Options:
        """The options that apply here."""
        if not self._open or not private.is_key_in_tls(_KEY):
            return self._base
        options = self._base
        for entry in private.get_obj_in_tls(_KEY):
            options = _changed(options, entry)
        return options

    @property
    def max_traces(self) -> int | None:
        """See `ProcessOptions`."""
        return self._process.max_traces

    @property
    def peak(self) -> tuple[float, float] | None:
        """See `ProcessOptions`."""
        return self._process.peak

    @property
    def execution(self) -> str:
        """See `ProcessOptions`."""
        return self._process.execution

    @property
    def tracebacks(self) -> str:
        """See `ProcessOptions`."""
        return self._process.tracebacks

    @property
    def program_memory(self) -> int | None:
        """See `ProcessOptions`."""
        return self._process.program_memory

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self._check_names([name], _SCOPED)
        return getattr(self.options(), name)

    def __repr__(self) -> str:
        return f"jaxtorch.config({self.options()})"

    def _check(self, changes: dict[str, Any], valid: Collection[str]) -> None:
        self._check_names(changes, valid)
        for name, value in changes.items():
            metadata = OPTIONS[name].metadata
            if not metadata["is_allowed"](value):
                raise ValueError(
                    f"jaxtorch.config: {name} must be {metadata['allowed']}, not {value!r}."
                )

    def _check_names(self, names: Iterable[str], valid: Collection[str]) -> None:
        for name in names:
            if name in OPTIONS and name not in valid:
                raise AttributeError(
                    f"jaxtorch.config: `{name}` applies to the whole process, not to a block: write "
                    f"`jaxtorch.config.update({name}=...)`."
                )
            if name not in valid:
                near = difflib.get_close_matches(name, valid, 1, 0.4)
                hint = f" Did you mean `{near[0]}`?" if near else ""
                raise AttributeError(
                    f"jaxtorch.config has no `{name}`.{hint} Its options: {', '.join(sorted(valid))}."
                )

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
