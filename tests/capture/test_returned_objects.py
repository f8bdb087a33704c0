"""Objects with tensors that captured code creates and returns: each run returns its own, as eager code does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import jaxtorch
from jaxtorch.capture.errors import CaptureError

from .doors import DOORS
from .doors import captured as captured

Tensor = torch.Tensor


class Box:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Slots:
    __slots__ = ("first", "second")

    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second


class Table(dict[str, Any]):
    pass


@dataclass
class Pair:
    first: Any
    second: Any


CONFIG = Box(size=3)


def shared(x: Tensor) -> Any:
    inner = Box(value=x + 1)
    return {"one": Pair(inner, x * 2), "two": Slots(inner, inner.value)}


def twice(x: Tensor) -> Any:
    box = Box(value=x * 4)
    return box, [box, x]


def views(x: Tensor) -> Any:
    whole = x * 2
    return Box(whole=whole, part=whole[1:], layers=[Box(keys=whole.view(-1))])


def failed(x: Tensor) -> Any:
    try:
        raise ValueError(3)
    except ValueError as error:
        return x + 1, error


CASES: dict[str, Callable[[Tensor], Any]] = {
    "an attribute": lambda x: Box(value=x * 2, n=3, text="a"),
    "a dataclass": lambda x: Pair(x * 0.5, (x - 2, [x])),
    "slots": lambda x: Slots(x + 1, {"a": Slots(x, None)}),
    "a dict of its own": lambda x: Table(a=x * 3, b=1),
    "shared by objects": shared,
    "twice": twice,
    "views": views,
    "beside tensors": lambda x: (x.sum(), Box(value=x.sum())),
    "without tensors": lambda x: (x * 2, Box(n=3, inner=[Box(n=4)])),
    "constants": lambda x: Box(ones=torch.ones(2, device=x.device), cpu=torch.ones(2), x=x - 1),
    "an older object": lambda x: Box(config=CONFIG, value=x * CONFIG.size),
    "an exception": failed,
    "a set": lambda x: Pair({1, 2}, x / 2),
}


def shown(value: Any, seen: dict[int, str] | None = None, path: str = "x") -> Any:
    """What a result holds, and which parts of it are the same object."""
    seen = {} if seen is None else seen
    if isinstance(value, int | float | str | None):
        return value
    if id(value) in seen:
        return f"as {seen[id(value)]}"
    seen[id(value)] = path
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        parts = dict(value)
    elif isinstance(value, list | tuple):
        parts = dict(enumerate(value))
    elif isinstance(value, set):
        return value
    elif isinstance(value, Slots):
        parts = {"first": value.first, "second": value.second}
    else:
        parts = vars(value)
    each = {k: shown(v, seen, f"{path}.{k}") for k, v in parts.items()}
    return type(value).__name__, each


@pytest.mark.parametrize("captured", DOORS, indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_as_eager_code_returns_them(name: str, captured: Any) -> None:
    function = CASES[name]
    run = captured(function)
    inputs = [torch.tensor([1.0, 2.0, 3.0]) + i for i in range(3)]
    results = [run(x.to("jax")) for x in inputs]
    # After all runs: no run changes what an earlier one has returned.
    assert list(map(shown, results)) == [shown(function(x)) for x in inputs]


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_views_in_an_object_share_memory(capture: Any) -> None:
    run = capture(views)
    for _ in range(2):
        box = run(torch.ones(3, device="jax"))
        box.whole.fill_(7)
        assert box.part.tolist() == [7, 7]
        assert box.layers[0].keys.tolist() == [7, 7, 7]


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_older_objects_and_modules_are_shared(capture: Any) -> None:
    model = nn.Linear(3, 3).to("jax")
    run = capture(lambda x: Box(model=model, config=CONFIG, value=model(x)))
    boxes = [run(torch.ones(3, device="jax")) for _ in range(3)]
    assert all(b.model is model and b.config is CONFIG for b in boxes)
    assert len({id(b) for b in boxes}) == 3


def test_gradients_flow_through_them() -> None:
    grads = []
    for device, capture in (("cpu", lambda f: f), ("jax", jaxtorch.pure)):
        x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
        run = capture(lambda x: Box(loss=(x**3).sum(), layers=[Box(y=x.sin())]))
        for _ in range(2):
            box = run(x)
            (box.loss + box.layers[0].y.sum()).backward()
        assert x.grad is not None
        grads.append(x.grad.cpu())
    torch.testing.assert_close(*grads)


def test_they_are_traced_once_and_release_their_tensors() -> None:
    run = jaxtorch.pure(CASES["an attribute"])
    for i in range(4):
        run(torch.full((3,), float(i), device="jax"))
    assert run.cache_info().misses == 1
    before = torch.jax.memory_allocated()
    box = run(torch.ones(3, device="jax"))
    del box
    assert torch.jax.memory_allocated() == before


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_one_that_cannot_be_copied_is_refused(capture: Any) -> None:
    import threading

    run = capture(lambda x: Box(value=x, lock=threading.Lock()))
    with pytest.raises(CaptureError, match=r"cannot be copied \(Box: cannot pickle '_thread.lock'"):
        run(torch.ones(3, device="jax"))


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_the_cache_of_a_language_model(capture: Any) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_size=32,
        intermediate_size=64,
        vocab_size=100,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    inputs = [torch.arange(8)[None] + i for i in range(3)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
        run = capture(model.to("jax"))
        found = [run(x.to("jax")) for x in inputs]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.logits.cpu(), theirs.logits, rtol=1e-4, atol=1e-5)
        for mine, other in zip(
            ours.past_key_values.layers, theirs.past_key_values.layers, strict=True
        ):
            torch.testing.assert_close(mine.keys.cpu(), other.keys, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(mine.values.cpu(), other.values, rtol=1e-4, atol=1e-5)
