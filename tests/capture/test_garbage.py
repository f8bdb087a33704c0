"""Garbage collections wait while code is traced or compiled; afterwards the thresholds are the user's again."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import jaxtorch
from jaxtorch.base import garbage
from jaxtorch.programs import compiling

from .doors import DOORS
from .doors import captured as captured

OFTEN = (50, 2, 2)  # full collections come after 300 objects


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


class Cycle:
    """A cycle that holds a tensor; garbage at once."""

    def __init__(self, x: torch.Tensor):
        self.cycle, self.tensor = self, x


# A tensor that the code creates: most do not depend on its input until they are written.
CREATED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros": lambda x: torch.zeros(3, device=x.device),
    "full": lambda x: torch.full((3,), 2.0, device=x.device),
    "empty_like": lambda x: torch.empty_like(x).fill_(3.0),
    "arange": lambda x: torch.arange(3.0, device=x.device),
    "tensor": lambda x: torch.tensor([1.0, 2.0, 3.0], device=x.device),
    "clone": lambda x: x.clone(),
    "a view": lambda x: torch.zeros(2, 3, device=x.device)[1],
}


def writing(created: str) -> Callable[[torch.Tensor], torch.Tensor]:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = CREATED[created](x)
        Cycle(y)
        y[0] = x.sum()
        return y * x

    return f


def in_a_branch(f: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    def g(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, f, lambda x: x.sin(), (x,))

    return g


def in_a_scan(f: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    def g(x: torch.Tensor) -> torch.Tensor:
        return jaxtorch.scan(lambda carry, _: (f(carry), None), x, None, length=2)[0]

    return g


def in_a_checkpoint(f: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    def g(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(f, x, use_reentrant=False)

    return g


@pytest.mark.parametrize("created", CREATED)
@pytest.mark.parametrize("captured", DOORS, indirect=True)
def test_garbage_that_the_code_has_written_is_no_state(captured: Any, created: str) -> None:
    f = writing(created)
    gc.disable()
    try:
        run = captured(f)
        for x in torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]):
            assert torch.equal(run(x.to("jax")).cpu(), f(x))
    finally:
        gc.enable()


@pytest.mark.parametrize("created", CREATED)
@pytest.mark.parametrize("inside", [in_a_branch, in_a_scan, in_a_checkpoint])
@pytest.mark.parametrize("captured", [d for d in DOORS if d != "torch.compile"], indirect=True)
@pytest.mark.sampled(12)
def test_garbage_of_a_body_is_no_state(captured: Any, inside: Any, created: str) -> None:
    f = inside(writing(created))
    x = torch.tensor([1.0, 2.0, 3.0])
    once, twice = writing(created)(x), writing(created)(writing(created)(x))
    gc.disable()
    try:
        assert torch.equal(captured(f)(x.to("jax")).cpu(), twice if inside is in_a_scan else once)
    finally:
        gc.enable()


def test_the_collections_would_come_otherwise(often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_apply", lambda: None)
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

    def write(self, when: str, news: dict[str, int]) -> None:
        (self.old if news["generation"] else self.young).append(when)

    def callback(self, kind: str) -> Callable[[str, dict[str, int]], None]:
        def function(when: str, news: dict[str, int]) -> None:
            seen = self.old if news["generation"] else self.young
            seen.append(when)

        def caller(when: str, news: dict[str, int]) -> None:
            self.write(when, news)

        kinds = {
            "object": self,
            "method": self.__call__,
            "partial": partial(Log.__call__, self),
            "caller": caller,
        }
        return kinds.get(kind, function)


@pytest.mark.parametrize("kind", ["object", "method", "partial", "function", "caller"])
@pytest.mark.parametrize("captured", DOORS, indirect=True)
def test_a_callback_of_the_collector_is_no_part_of_the_code(
    captured: Any, kind: str, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "_apply", lambda: None)
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


def test_a_function_that_was_a_callback_is_followed_again() -> None:
    settings = {"scale": 2.0}

    def scale(when: str = "", news: Any = None) -> float:
        return settings["scale"]

    run = jaxtorch.pure(lambda x: x * scale())
    x = torch.ones(1, device="jax")
    gc.callbacks.append(scale)
    try:
        assert run(x).tolist() == [2]
    finally:
        gc.callbacks.remove(scale)
    another = jaxtorch.pure(lambda x: x * scale() + 1)
    assert another(x).tolist() == [3]
    settings["scale"] = 3.0
    assert another(x).tolist() == [4]


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
    assert not garbage._holders


def test_young_collections_are_rare_and_not_never() -> None:
    """A trace that creates endless garbage in cycles does not fill the memory."""
    seen = Collections()
    gc.callbacks.append(seen)
    try:
        with garbage.collected_later():
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
        with garbage.collected_later():
            first, second, third = gc.get_threshold()
        assert first >= thresholds[0]
        assert (first > 0) is (thresholds[0] > 0)
        assert (second, third) == (thresholds[1], garbage._NEVER)
        assert gc.get_threshold() == thresholds
    finally:
        gc.set_threshold(*before)


def test_what_the_user_sets_in_the_block_stays() -> None:
    before = gc.get_threshold()
    try:
        with garbage.collected_later():
            gc.set_threshold(321, 12, 13)
        assert gc.get_threshold() == (321, 12, 13)
        with garbage.collected_later():
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
        with garbage.collected_later():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with garbage.collected_later():
        thread.start()
        entered.wait(60)
    assert gc.get_threshold()[2] > 1_000_000
    leave.set()
    thread.join()
    assert gc.get_threshold() == before
