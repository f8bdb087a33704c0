"""Dependencies on the world outside of Python objects, and those that must be compared by contents.

No guard can check iterators, the clock, random numbers of the host or files: code that uses them is refused, or warned
about. CPU tensors and arrays change in place, so that their checks compare them with a copy.
"""

from __future__ import annotations

import array
import contextvars
import functools
import io
import logging
import operator
import os
import random
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import torch

from ...programs.site import is_user_file
from ..errors import CaptureError
from .guard import ArrayCheck, Check
from .tokens import MISSING, token

Tensor = torch.Tensor

_CLOCK = "reads the clock"
_FILE = "reads a file"
_INPUT = "reads the keyboard"
_RANDOM = "draws random numbers on the host"
_FUNCTIONS: dict[object, str] = {
    open: _FILE,
    os.read: _FILE,
    input: _INPUT,
    os.urandom: _RANDOM,
    **{
        function: _CLOCK
        for name in (
            *("time", "perf_counter", "monotonic", "process_time", "thread_time"),
            *("time_ns", "perf_counter_ns", "monotonic_ns", "process_time_ns", "thread_time_ns"),
            *("localtime", "gmtime", "ctime", "asctime", "strftime", "clock_gettime"),
        )
        if (function := getattr(time, name, None)) is not None
    },
}
_FILE_SYSTEM = (os.stat, os.lstat, os.listdir, os.scandir)
# Modules that call these for their callers.
_PATH_MODULES = ("genericpath", "posixpath", "ntpath", "pathlib", "glob")
_METHODS = {"now": _CLOCK, "utcnow": _CLOCK, "today": _CLOCK}
_READS = frozenset({"read", "readline", "readlines", "readinto"})
# Python itself reads source files here: for an import, for the line of a warning.
_SOURCE_READERS = (
    "linecache.py",
    "tokenize.py",
    "importlib",
    "inspect.py",
    "warnings.py",
    "traceback.py",
    "<frozen",
)
_BYTES = (bytearray, memoryview, array.array)
# Functions and methods of torch that draw random numbers.
DRAWS = frozenset(
    {
        *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"),
        *("normal", "bernoulli", "multinomial", "poisson", "binomial"),
        *(
            "normal_",
            "bernoulli_",
            "random_",
            "uniform_",
            "exponential_",
            "geometric_",
            "cauchy_",
            "log_normal_",
        ),
        *(
            "dropout",
            "dropout_",
            "alpha_dropout",
            "alpha_dropout_",
            "feature_dropout",
            "feature_dropout_",
        ),
        *("feature_alpha_dropout", "feature_alpha_dropout_", "rrelu", "rrelu_", "native_dropout"),
        *("_sample_dirichlet", "_standard_gamma"),
    }
)
# Functions whose results a program may depend on: they are called again before each run.
RECHECKED = frozenset(
    {
        os.getcwd,
        sys.getrecursionlimit,
        torch.get_num_threads,
        torch.get_num_interop_threads,
        torch.initial_seed,
    }
)
# The modules of objects that are not inspected. Locks change at any time, as they hold the waiting threads. Each logger
# leads to all others. Code can depend on what `state_of` reads of them.
OPAQUE_MODULES = frozenset({"threading", "multiprocessing.synchronize", "logging"})
_MAX_COMPARED = 1 << 12  # elements of a CPU tensor that is compared by value too


def unrepeatable(function: object) -> str | None:
    """What a function does that a program cannot repeat, such as "reads the clock"; None for other functions."""
    if isinstance(function, types.BuiltinFunctionType):
        known = _FUNCTIONS.get(function)
        if known is not None:
            return known
    if isinstance(function, random.Random | np.random.RandomState | np.random.Generator):
        return _RANDOM
    if not isinstance(function, types.BuiltinFunctionType | types.MethodType) and not _is_cython(
        function
    ):
        return None
    owner = getattr(function, "__self__", None)
    if isinstance(owner, random.Random | np.random.RandomState | np.random.Generator):
        return _RANDOM
    if isinstance(owner, type) and owner.__module__ == "datetime":
        return _METHODS.get(getattr(function, "__name__", ""))
    return None


def _is_cython(function: object) -> bool:
    return type(function).__name__ == "cython_function_or_method"


def unrepeatable_call(function: object, frame: types.FrameType) -> str | None:
    """What a call of a builtin does that a program cannot repeat, or None."""
    name = getattr(function, "__name__", "")
    if function is open or (
        name in _READS and isinstance(getattr(function, "__self__", None), io.IOBase)
    ):
        return None if _reads_source(frame) else _FILE
    if function in _FILE_SYSTEM:
        while frame.f_back is not None and frame.f_globals.get("__name__") in _PATH_MODULES:
            frame = frame.f_back
        return _FILE if is_user_file(frame.f_code.co_filename) else None
    if name in _METHODS or function is os.urandom or function is input:
        return unrepeatable(function)
    if is_user_file(frame.f_code.co_filename):
        return unrepeatable(function)
    return None


def _reads_source(frame: types.FrameType | None) -> bool:
    """Whether Python itself reads a file: for an import, or for the line of a warning."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if any(part in frame.f_code.co_filename for part in _SOURCE_READERS):
            return True
        frame = frame.f_back
    return False


def is_iterator(value: object) -> bool:
    """Whether reading a value advances it, so that a program could not read it again."""
    if isinstance(value, io.IOBase):
        standard = value in (sys.stdin, sys.stdout, sys.stderr)
        return not standard and not value.closed and value.readable()
    # `hasattr` would ask a metaclass, which may answer to any name.
    return any("__next__" in vars(cls) for cls in type(target_of(value)).__mro__)


def target_of(value: object) -> object:
    """The object that a weak proxy stands for; None if it no longer exists, and any other value itself."""
    if type(value) not in weakref.ProxyTypes:
        return value
    try:
        return value.__init__.__self__  # type: ignore[misc]  # the proxy passes attributes on
    except (ReferenceError, AttributeError):
        return None


def refuse_iterator(path: str, file: str | None, line: int | None) -> None:
    """Raise for an iterator that captured code may advance."""
    raise CaptureError(
        f"`{path}` is an iterator, which captured code would advance only once, when it is traced",
        "Take its next value outside the captured code (`batch = next(...)`) and pass that.",
        file,
        line,
    )


def cpu_tensor_check(path: str, tensor: Tensor) -> Check:
    """A check that a CPU tensor was not written to: its values are constants of the program."""
    reference = weakref.ref(tensor)
    tracked = not tensor.is_inference()
    version = tensor._version if tracked else 0
    small = tensor.numel() <= _MAX_COMPARED and not tensor.is_sparse and not tensor.is_quantized
    copy = tensor.detach().clone() if small and tensor.device.type != "meta" else None

    def holds() -> bool:
        now = reference()
        if now is None or (tracked and now._version != version):
            return False
        return copy is None or (now.shape == copy.shape and _equal(now, copy))

    return Check(path, "was written to", holds)


def state_of(value: object) -> tuple[str, Callable[[], object]] | None:
    """What code can depend on of an object that is not inspected: a method's name, and a function that reads it."""
    if isinstance(value, threading.Event):
        return "is_set", value.is_set
    if isinstance(value, logging.Logger | logging.LoggerAdapter):
        logger = value  # mypy does not narrow `value` in a lambda
        # The last: whether the logger is disabled altogether.
        return "isEnabledFor", lambda: (
            logger.getEffectiveLevel(),
            logger.manager.disable,
            logger.isEnabledFor(logging.CRITICAL),
        )
    return None


def same_result_check(path: str, function: Callable[[], object]) -> Check:
    """A check that a function still returns the same value."""
    before = token(function())
    what = "returns a different value"
    return Check(f"{path}()", what, lambda: bool(token(function()) == before))


def imported_check(path: str, names: Iterable[str]) -> Check:
    """A check that the same ones of some modules are imported; every other import changes `sys.modules` too."""
    candidates = list(names)

    def imported() -> list[str]:
        return [name for name in candidates if name in sys.modules]

    before = imported()
    return Check(path, "has other modules", lambda: imported() == before)


def cache_check(path: str, cache: functools._lru_cache_wrapper[Any]) -> Check:
    """A check that a function under `functools.lru_cache` has dropped no results."""
    least = cache.cache_info().currsize
    return Check(path, "has dropped cached results", lambda: cache.cache_info().currsize >= least)


def value_of(variable: contextvars.ContextVar[Any]) -> object:
    """The value of a context variable, or its default; MISSING if it has neither."""
    try:
        return variable.get()
    except LookupError:
        return MISSING


def context_variable_check(
    path: str, variable: contextvars.ContextVar[Any], before: object
) -> Check:
    """A check that a context variable has the value that it had before."""
    expected = token(before)
    return Check(
        f"{path}.get()",
        "returns a different value",
        lambda: bool(token(value_of(variable)) == expected),
    )


def is_array(value: object) -> bool:
    """Whether a value is compared by its elements."""
    if isinstance(value, jax.Array):  # it never changes, or is a tracer
        return False
    return isinstance(value, np.ndarray | bytearray | memoryview | array.array) or hasattr(
        type(value), "__array__"
    )


def objects_of_array(value: object) -> list[object]:
    """The elements of a value for which `is_array` holds, if they are objects; a record is a tuple."""
    array = None if isinstance(value, _BYTES) else np.asarray(value)
    return array.reshape(-1).tolist() if array is not None and array.dtype.hasobject else []


def names_of_getter(value: object) -> list[str]:
    """The attributes that an `operator.attrgetter` or `methodcaller` reads."""
    if isinstance(value, operator.attrgetter | operator.methodcaller):
        return [
            part
            for name in value.__reduce__()[1]
            if isinstance(name, str)
            for part in name.split(".")
        ]
    return []


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype:
        return False
    with torch.no_grad():
        return bool(torch.equal(one, other)) or bool(
            ((one == other) | (one.ne(one) & other.ne(other))).all()
        )


def _labels(value: object) -> list[object]:
    """What an array has besides its elements: the labels of a DataFrame, a mask, names of fields."""
    parts = [getattr(value, name, None) for name in ("columns", "index", "mask")]
    labels = [p.tolist() if p is not None and hasattr(p, "tolist") else None for p in parts]
    return [*labels, getattr(getattr(value, "dtype", None), "names", None)]


def array_check(path: str, value: object) -> ArrayCheck:
    """A check of the contents of a NumPy array, or of an object that converts to one (a DataFrame)."""
    if isinstance(value, _BYTES):
        before = bytes(value)
        return ArrayCheck(path, "has different contents", lambda: bytes(value) == before)
    copy = np.array(value, copy=True)
    labels = _labels(value)

    def holds() -> bool:
        now = np.asarray(value)
        if labels != _labels(value):
            return False
        if now.shape != copy.shape or now.dtype != copy.dtype:
            return False
        if now.dtype.hasobject:
            return bool(np.array_equal(now, copy))
        if now.flags.c_contiguous:
            return now.reshape(-1).view(np.uint8).data == copy.reshape(-1).view(np.uint8).data
        return now.tobytes() == copy.tobytes()

    return ArrayCheck(path, "has different contents", holds)
