"""The function that a frame runs, found in CPython's frame and by a search."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jaxtorch.base import running_function
from jaxtorch.base.running_function import function_of

Found = types.FunctionType | None
Case = tuple[Callable[[], Found], Any]  # a call that finds a function, and that function


def _function() -> Case:
    def run() -> Found:
        return function_of(sys._getframe())

    return run, run


def _of_two_alike() -> Case:
    """Functions with one code and equal closures are distinguished."""

    def make(value: int) -> Callable[[], Found]:
        def run() -> Found:
            return function_of(sys._getframe()) if value else None

        return run

    _, second = make(1), make(1)
    return second, second


def _generator() -> Case:
    def numbers() -> Iterator[Found]:
        yield None
        yield function_of(sys._getframe())

    return lambda: list(numbers())[1], numbers


def _coroutine() -> Case:
    async def wait() -> Found:
        return function_of(sys._getframe())

    def run() -> Found:
        coroutine = wait()
        try:
            coroutine.send(None)
        except StopIteration as ended:
            return ended.value
        return None

    return run, wait


def _property() -> Case:
    def read(self: object) -> Found:
        return function_of(sys._getframe())

    holder = type("Holder", (), {"value": property(read)})()
    return lambda: holder.value, read


def _caller() -> Case:
    """A frame that waits for a call, with other locals."""

    def outer() -> Found:
        number = 3
        del number
        return (lambda frame: function_of(frame))(sys._getframe())

    return outer, outer


CASES = [_function, _of_two_alike, _generator, _coroutine, _property, _caller]


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__.strip("_"))
def test_the_running_function(make: Callable[[], Case]) -> None:
    assert running_function._INDEX is not None, "CPython's frame has changed"
    run, function = make()
    assert run() is function


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__.strip("_"))
def test_where_the_frame_has_an_unknown_layout(
    make: Callable[[], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search finds one of the functions with the same code and the same closure."""
    monkeypatch.setattr(running_function, "_INDEX", None)
    run, function = make()
    found = run()
    assert found is not None
    assert found.__code__ is function.__code__


def test_the_body_of_a_class_is_run_by_a_function() -> None:
    class Body:
        function = function_of(sys._getframe())

    assert isinstance(Body.function, types.FunctionType)
    assert Body.function.__name__ == "Body"
