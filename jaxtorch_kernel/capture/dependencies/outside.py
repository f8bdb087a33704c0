"""Dependencies that no guard can watch, and those that a guard must compare by contents.

The former are iterators, the clock, random numbers of the host and files; the latter CPU tensors and arrays.
"""

from __future__ import annotations

import array
import contextvars
import io
import operator
import os
import random
import sys
import time
import types
import weakref
from typing import Any

import jax
import numpy as np
import torch

from ...programs.site import is_user_file
from ..errors import CaptureError
from .guard import Check
from .tokens import MISSING, token

Tensor = torch.Tensor

_CLOCK = "reads the clock"
_FILE = "reads a file"
_INPUT = "reads the keyboard"
_HOST = "draws random numbers on the host"
_FUNCTIONS: dict[Any, str] = {
    open: _FILE,
    os.read: _FILE,
    input: _INPUT,
    os.urandom: _HOST,
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
_LOOKS = (os.stat, os.lstat, os.listdir, os.scandir)  # at the file system
_PATHS = ("genericpath", "posixpath", "ntpath", "pathlib", "glob")  # modules that look for others
_METHODS = {"now": _CLOCK, "utcnow": _CLOCK, "today": _CLOCK}
_READS = frozenset({"read", "readline", "readlines", "readinto"})
_QUIET = (
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
# What a program may depend on, and what is asked again before each run.
ASKED = frozenset(
    {
        os.getcwd,
        sys.getrecursionlimit,
        torch.get_num_threads,
        torch.get_num_interop_threads,
        torch.initial_seed,
    }
)
# Modules whose objects are not looked into: of locks, which hold who waits now and change at any time; of loggers, of
# which each leads to all others, and which decide nothing but what is written.
SHARED = frozenset({"threading", "multiprocessing.synchronize", "logging"})
_SMALL = 1 << 12  # elements of a tensor on the CPU that is compared by value too


def what_of(function: Any) -> str | None:
    """What a function of the host does that a program cannot repeat, or None."""
    if isinstance(function, types.BuiltinFunctionType):
        known = _FUNCTIONS.get(function)
        if known is not None:
            return known
    if isinstance(function, random.Random | np.random.RandomState | np.random.Generator):
        return _HOST
    if not isinstance(function, types.BuiltinFunctionType | types.MethodType) and not _is_cython(
        function
    ):
        return None
    owner = getattr(function, "__self__", None)
    if isinstance(owner, random.Random | np.random.RandomState | np.random.Generator):
        return _HOST
    if isinstance(owner, type) and owner.__module__ == "datetime":
        return _METHODS.get(getattr(function, "__name__", ""))
    return None


def _is_cython(function: Any) -> bool:
    return type(function).__name__ == "cython_function_or_method"


def called(function: Any, frame: types.FrameType) -> str | None:
    """What a call of a builtin does that a program cannot repeat."""
    name = getattr(function, "__name__", "")
    if function is open or (
        name in _READS and isinstance(getattr(function, "__self__", None), io.IOBase)
    ):
        return None if _is_quiet(frame) else _FILE
    if function in _LOOKS:
        while frame.f_back is not None and frame.f_globals.get("__name__") in _PATHS:
            frame = frame.f_back
        return _FILE if is_user_file(frame.f_code.co_filename) else None
    if name in _METHODS or function is os.urandom or function is input:
        return what_of(function)
    if is_user_file(frame.f_code.co_filename):
        return what_of(function)
    return None


def _is_quiet(frame: types.FrameType | None) -> bool:
    """Whether a file is read by Python itself: an import, a line of source for a warning."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if any(part in frame.f_code.co_filename for part in _QUIET):
            return True
        frame = frame.f_back
    return False


def is_iterator(value: Any) -> bool:
    """Whether reading a value advances it, so that a program could not read it again."""
    if isinstance(value, io.IOBase):
        standard = value in (sys.stdin, sys.stdout, sys.stderr)
        return not standard and not value.closed and value.readable()
    return hasattr(type(value), "__next__")


def refuse_iterator(path: str, file: str | None, line: int | None) -> None:
    """Raise for an iterator that captured code may advance."""
    raise CaptureError(
        f"`{path}` is an iterator, which captured code would advance only once, when it is traced",
        "Take its next value outside the captured code (`batch = next(...)`) and pass that.",
        file,
        line,
    )


def unwritten(path: str, tensor: Tensor) -> Check:
    """A check of a CPU tensor, whose values are part of the program."""
    reference = weakref.ref(tensor)
    tracked = not tensor.is_inference()
    version = tensor._version if tracked else 0
    small = tensor.numel() <= _SMALL and not tensor.is_sparse and not tensor.is_quantized
    copy = tensor.detach().clone() if small and tensor.device.type != "meta" else None

    def holds() -> bool:
        now = reference()
        if now is None or (tracked and now._version != version):
            return False
        return copy is None or (now.shape == copy.shape and _equal(now, copy))

    return Check(path, "was written to", holds)


def asked_again(path: str, ask: Any) -> Check:
    """A check that a function still returns the same value."""
    before = token(ask())
    return Check(f"{path}()", "returns a different value", lambda: bool(token(ask()) == before))


def kept_results(path: str, cache: Any) -> Check:
    """A check that a function under `functools.lru_cache` has dropped no results."""
    least = cache.cache_info().currsize
    return Check(path, "has dropped cached results", lambda: cache.cache_info().currsize >= least)


def context_variable(path: str, variable: contextvars.ContextVar[Any]) -> Check:
    """A check that a context variable has the same value."""
    return asked_again(f"{path}.get", lambda: variable.get(MISSING))


def is_array(value: Any) -> bool:
    """Whether a value is compared by its elements."""
    if isinstance(value, jax.Array):  # which never change, or are tracers
        return False
    return isinstance(value, np.ndarray | bytearray | memoryview | array.array) or hasattr(
        type(value), "__array__"
    )


def names_asked(value: Any) -> list[str]:
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


def _labels(value: Any) -> list[Any]:
    """What an array has beside its elements: a frame's labels, a mask, names of fields."""
    parts = [getattr(value, name, None) for name in ("columns", "index", "mask")]
    own = [None if p is None or not hasattr(p, "tolist") else p.tolist() for p in parts]
    return [*own, getattr(getattr(value, "dtype", None), "names", None)]


def unchanged_array(path: str, value: Any) -> Check:
    """An array of NumPy's, or what gives one (a DataFrame): compared by its contents."""
    if isinstance(value, _BYTES):
        before = bytes(value)
        return Check(path, "has different contents", lambda: bytes(value) == before)
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

    return Check(path, "has different contents", holds)
