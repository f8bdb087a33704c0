"""Finding all objects of a class does not disturb other threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import torch

from jaxtorch.insight.instances import instances, with_subclasses
from jaxtorch.insight.memory import live_arrays


class Base:
    pass


class Derived(Base):
    pass


def test_objects_of_exactly_these_classes_are_found() -> None:
    base, derived = Base(), Derived()
    assert instances([Base]) == [base]
    assert {id(o) for o in instances(with_subclasses(Base))} == {id(base), id(derived)}


def test_a_thread_that_looks_does_not_break_a_tuple_in_the_making() -> None:
    """A reference to a tuple that `tuple(generator)` is building makes it raise a SystemError."""
    kept, ended = torch.ones(91, 107, device="jax"), threading.Event()
    looks = 0

    def look() -> None:
        nonlocal looks
        while not ended.wait(0.002):
            live_arrays({"kept": kept})
            looks += 1

    def numbers() -> Iterator[int]:
        for i in range(30):
            sum(range(3000))
            yield i

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(1500):
            assert len(tuple(numbers())) == 30
            if looks > 100:  # a look takes long in a process with many objects
                break
        assert looks
    finally:
        ended.set()
        thread.join()
