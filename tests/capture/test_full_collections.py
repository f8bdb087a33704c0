"""Garbage collections wait while code is traced or compiled; afterwards the thresholds are the user's again."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

import jaxtorch
from jaxtorch.base import full_collections
from jaxtorch.programs import compiling

OFTEN = (50, 2, 2)  # full collections come after 300 objects
Function = Callable[[torch.Tensor], torch.Tensor]


class Collections:
    """The generations that were collected, while something was traced or compiled and otherwise."""

    def __init__(self) -> None:
        self.while_building: list[int] = []
        self.otherwise: list[int] = []

    def __call__(self, when: str, news: dict[str, int]) -> None:
        if when == "start":
            seen = self.while_building if compiling.phases else self.otherwise
            seen.append(news["generation"])


@pytest.fixture
def often() -> Iterator[None]:
    before = gc.get_threshold()
    gc.freeze()  # Python collects all generations when the old one has grown by a quarter: let it be small
    gc.collect()
    gc.set_threshold(*OFTEN)
    yield
    gc.set_threshold(*before)


@pytest.fixture
def collections(often: None) -> Iterator[Collections]:
    note = Collections()
    gc.callbacks.append(note)
    yield note
    gc.callbacks.remove(note)


def of_a_cell(magic: str) -> Callable[[Function], Function]:
    def captured(function: Function) -> Function:
        shell = InteractiveShell.instance()

        def run(x: torch.Tensor) -> torch.Tensor:
            shell.user_ns.update(function=function, x=x)
            shell.run_cell(f"%%{magic} -q\nresult = function(x)").raise_error()
            result: torch.Tensor = shell.user_ns["result"]
            return result

        return run

    return captured


DOORS: dict[str, Callable[[Function], Function]] = {
    "%%pure": of_a_cell("pure"),
    "%%jit": of_a_cell("jit"),
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
    "torch.compile": lambda function: torch.compile(function, backend="jax"),
    "eager": lambda function: function,
}


@pytest.fixture
def captured(request: Any) -> Iterator[Callable[[Function], Function]]:
    door = request.param
    if door.startswith("%%"):
        shell = InteractiveShell.instance()
        shell.run_line_magic("load_ext", "jaxtorch")
        yield DOORS[door]
        shell.run_line_magic("unload_ext", "jaxtorch")
        InteractiveShell.clear_instance()
    else:
        yield DOORS[door]


@pytest.mark.parametrize("captured", DOORS, indirect=True)
def test_none_while_code_is_traced_or_compiled(captured: Any, collections: Collections) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = torch.nn.functional.gelu(x @ x.T).cumsum(0)[:, :41]
        return x

    # Of a size that no other test has, so that the eager operators are compiled here.
    captured(f)(torch.full((41, 41), 1e-3, device="jax")).cpu()
    assert gc.get_threshold() == OFTEN
    assert collections.while_building == []
    collections.otherwise.clear()
    kept = [[] for _ in range(200_000)]  # far more than a quarter of what is old
    assert kept
    assert 2 in collections.otherwise


class Mean(torch.nn.Module):
    """Stores a new tensor at each run."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(43, device="jax"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach()
        return x - self.mean


@pytest.mark.parametrize("captured", DOORS, indirect=True)
def test_none_for_a_tensor_that_the_code_stores(captured: Any, collections: Collections) -> None:
    model = Mean()
    captured(model)(torch.ones(43, device="jax")).cpu()
    assert collections.while_building == []
    assert torch.equal(model.mean.cpu(), torch.full((43,), 0.1))


class Garbage:
    """A cycle that holds a tensor."""

    def __init__(self, x: torch.Tensor, collects: bool):
        self.cycle, self.tensor = self, x.exp()
        if collects:
            gc.collect()  # what is alive now is in the old generation afterwards


@pytest.mark.parametrize("collects", [False, True], ids=["young", "old"])
@pytest.mark.parametrize("captured", DOORS, indirect=True)
def test_garbage_of_the_code_stores_nothing(captured: Any, collects: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        Garbage(x, collects)
        return x + 1

    gc.disable()
    try:
        assert captured(f)(torch.zeros(3, device="jax")).tolist() == [1, 1, 1]
    finally:
        gc.enable()


def test_the_collections_would_come_otherwise(often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_collections, "_apply", lambda: None)
    # Not counted by a callback: it would run in the trace, as a part of the code.
    before = [generation["collections"] for generation in gc.get_stats()]
    jaxtorch.pure(lambda x: x.cosh() * 41.5)(torch.ones(41, device="jax"))
    after = [generation["collections"] for generation in gc.get_stats()]
    assert all(new > old for new, old in zip(after, before, strict=True))


class Log:
    """Callbacks of several kinds that append to a list which existed before."""

    def __init__(self) -> None:
        self.young: list[str] = []
        self.old: list[str] = []

    def __call__(self, when: str, news: dict[str, int]) -> None:
        seen = self.old if news["generation"] else self.young
        seen.append(when)

    def callback(self, kind: str) -> Callable[[str, dict[str, int]], None]:
        def function(when: str, news: dict[str, int]) -> None:
            seen = self.old if news["generation"] else self.young
            seen.append(when)

        kinds = {"object": self, "method": self.__call__, "partial": partial(Log.__call__, self)}
        return kinds.get(kind, function)


@pytest.mark.parametrize("kind", ["object", "method", "partial", "function"])
@pytest.mark.parametrize("captured", DOORS, indirect=True)
def test_a_callback_of_the_collector_is_no_part_of_the_code(
    captured: Any, kind: str, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_collections, "_apply", lambda: None)
    log = Log()
    callback = log.callback(kind)

    def f(x: torch.Tensor) -> torch.Tensor:
        kept = [[] for _ in range(2_000)]
        return x.cosh() * len(kept)

    gc.callbacks.append(callback)
    try:
        for _ in range(2):
            assert captured(f)(torch.zeros(3, device="jax")).tolist() == [2000] * 3
    finally:
        gc.callbacks.remove(callback)
    assert log.young
    assert log.old


@pytest.mark.parametrize("step", ["TPU", "checkpoint", "profile"])
def test_other_work_that_takes_long_postpones_nothing(step: str, collections: Collections) -> None:
    with compiling.phase("in the background", step):
        kept = [[] for _ in range(2_000)]
    assert kept
    assert 2 in collections.while_building


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_a_trace_leaves_the_thresholds(error: type[BaseException]) -> None:
    before = gc.get_threshold()

    @jaxtorch.pure
    def f(x: torch.Tensor) -> torch.Tensor:
        raise error

    with pytest.raises(error):
        f(torch.ones(3, device="jax"))
    assert gc.get_threshold() == before
    assert not full_collections._holders


def test_young_collections_are_rare_and_not_never() -> None:
    """A trace that creates endless garbage in cycles does not fill the memory."""
    seen = Collections()
    gc.callbacks.append(seen)
    try:
        with full_collections.postponed():
            kept = [[] for _ in range(250_000)]
    finally:
        gc.callbacks.remove(seen)
    assert kept
    assert 1 <= len(seen.otherwise) <= 3


@pytest.mark.parametrize(
    "thresholds", [(0, 10, 10), (200_000, 10, 10), (700, 10, 0), (700, 0, 0)], ids=str
)
def test_no_threshold_gets_lower(thresholds: tuple[int, int, int]) -> None:
    """The first one of 0 means no collections."""
    before = gc.get_threshold()
    gc.set_threshold(*thresholds)
    try:
        with full_collections.postponed():
            first, second, third = gc.get_threshold()
        assert first >= thresholds[0]
        assert (first > 0) is (thresholds[0] > 0)
        assert (second, third) == (thresholds[1], full_collections._NEVER)
        assert gc.get_threshold() == thresholds
    finally:
        gc.set_threshold(*before)


def test_what_the_user_sets_in_the_block_stays() -> None:
    before = gc.get_threshold()
    try:
        with full_collections.postponed():
            gc.set_threshold(321, 12, 13)
        assert gc.get_threshold() == (321, 12, 13)
        with full_collections.postponed():
            gc.disable()
        assert gc.get_threshold() == (321, 12, 13)
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.set_threshold(*before)


def test_the_last_of_several_threads_ends_it() -> None:
    before = gc.get_threshold()
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with full_collections.postponed():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with full_collections.postponed():
        thread.start()
        entered.wait(60)
    assert gc.get_threshold()[2] > 1_000_000
    leave.set()
    thread.join()
    assert gc.get_threshold() == before
