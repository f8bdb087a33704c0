"""`pure(module)` and `jit(module)` are the module, with calls that are captured."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

import jaxtorch

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
Capture = Callable[[nn.Module], nn.Module]
CAPTURES = pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])


class Net(nn.Sequential):
    """With an attribute, a method, and names that this package's own classes have inside."""

    source, kind, find, hits = "s", "k", "f", 7

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.scale = 2.0
        self._name = self._function = self._lock = "mine"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale

    def total(self) -> torch.Tensor:
        return sum(p.sum() for p in self.parameters())  # type: ignore[return-value]


@pytest.fixture
def module() -> Net:
    return Net().to("jax")


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(3, 4, device="jax")


def runs_compiled(captured: nn.Module, x: torch.Tensor) -> None:
    """A further call traces nothing, and gives what the module gives."""
    captured(x)
    known = captured.cache_info()
    torch.manual_seed(0)
    result = captured(x)
    torch.manual_seed(0)
    torch.testing.assert_close(result, captured.__wrapped__(x), rtol=1e-4, atol=1e-5)
    info = captured.cache_info()
    assert (info.hits, info.misses) == (known.hits + 1, known.misses)


@CAPTURES
def test_all_that_a_module_has(capture: Capture, module: Net, x: torch.Tensor) -> None:
    captured = capture(module)
    assert isinstance(captured, Net)
    assert isinstance(captured, nn.Sequential)
    assert not isinstance(captured, nn.ModuleList)
    assert captured.__wrapped__ is module
    assert repr(captured) == repr(module)
    assert (len(captured), captured[0], list(captured)) == (3, module[0], list(module))
    assert all(a is b for a, b in zip(captured.parameters(), module.parameters(), strict=True))
    assert list(captured.state_dict()) == list(module.state_dict())
    assert captured.__dict__ is module.__dict__
    assert torch.equal(captured.total(), module.total())
    assert (captured.source, captured.kind, captured.find, captured.hits) == ("s", "k", "f", 7)
    assert captured._name == captured._function == captured._lock == "mine"
    runs_compiled(captured.eval(), x)
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'missing'"):
        captured.missing  # noqa: B018


@CAPTURES
def test_changes_reach_both(capture: Capture, module: Net, x: torch.Tensor) -> None:
    captured = capture(module)
    assert captured.eval() is captured
    assert not module.training
    assert not module[2].training
    before = captured(x)
    captured.scale = 4.0
    assert module.scale == 4.0
    torch.testing.assert_close(captured(x), before * 2)
    captured.extra = nn.Parameter(torch.ones(1, device="jax"))
    assert module.extra is captured.extra
    assert "extra" in dict(module.named_parameters())
    del module.extra
    assert not hasattr(captured, "extra")
    captured.load_state_dict({k: torch.zeros_like(v) for k, v in module.state_dict().items()})
    assert not captured(x).any()
    seen: list[torch.Size] = []
    handle = captured.register_forward_hook(lambda m, args, out: seen.append(out.shape))
    module(x)
    handle.remove()
    assert seen == [x.shape]
    assert captured.double().scale == 4.0
    assert module[0].weight.dtype == torch.float64


@CAPTURES
def test_within_another_module(capture: Capture, module: Net, x: torch.Tensor) -> None:
    class Outer(nn.Module):
        def __init__(self, inner: nn.Module):
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).sin()

    plain, outer = Outer(module).eval(), Outer(capture(module)).eval()
    assert list(outer.state_dict()) == list(plain.state_dict())
    expected = plain(x)
    calls = [outer, jaxtorch.pure(outer)]
    if capture is jaxtorch.pure:
        calls.append(torch.compile(outer, backend="jax", fullgraph=True))
    for call in calls:
        for _ in range(2):
            torch.testing.assert_close(call(x), expected)
    assert outer.inner.cache_info().misses == 1  # where it was called by itself
    outer.train()
    assert module.training


def test_training_by_its_own_parameters(module: Net, x: torch.Tensor) -> None:
    expected = copy.deepcopy(module)
    for net, call in ((module, jaxtorch.pure(module)), (expected, expected)):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(call.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            call(x).square().sum().backward()
            optimizer.step()
        assert net[1].num_batches_tracked == 3
    torch.testing.assert_close(
        dict(module.state_dict()), dict(expected.state_dict()), rtol=1e-2, atol=1e-3
    )


@CAPTURES
def test_copies_and_pickles_are_captured_too(capture: Capture, x: torch.Tensor) -> None:
    original = nn.Linear(4, 4)
    captured = capture(original)
    file = io.BytesIO()
    torch.save(captured, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for twin in (copy.deepcopy(captured), pickle.loads(pickle.dumps(captured)), loaded):
        assert type(twin._jaxtorch) is type(captured._jaxtorch)
        assert twin.__wrapped__ is not original
        assert twin.weight is not original.weight
        assert torch.equal(twin.weight, original.weight)
        runs_compiled(twin.to("jax"), x)


@CAPTURES
def test_to_capture_again(capture: Capture, module: Net, x: torch.Tensor) -> None:
    again = capture(jaxtorch.pure(module))
    assert again.__wrapped__ is module
    runs_compiled(again.eval(), x)


def test_a_lazy_module() -> None:
    captured = jaxtorch.pure(nn.Sequential(nn.LazyLinear(3)).to("jax"))
    x = torch.randn(2, 5, device="jax")
    captured(x)
    assert captured[0].weight.shape == (3, 5)
    runs_compiled(captured, x)


class Guarded(nn.Linear):
    """Whose attributes cannot be set from outside, and whose subclasses are counted."""

    subclasses = 0

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        Guarded.subclasses += 1

    def __setattr__(self, name: str, value: object) -> None:
        assert name != "__dict__"
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> object:
        return 5 if name == "computed" else super().__getattr__(name)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Guarded(4, 4),
        lambda: torch.compile(nn.Linear(4, 4), backend="jax"),
        lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU())),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
    ],
    ids=["own rules", "compiled", "fx", "parametrized", "transformer"],
)
def test_modules_of_unusual_classes(make: Callable[[], nn.Module], x: torch.Tensor) -> None:
    module = make().to("jax").eval()
    captured = jaxtorch.pure(module)
    runs_compiled(captured, x[None])
    if isinstance(module, Guarded):
        assert captured.computed == 5
