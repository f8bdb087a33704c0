"""Hooks on modules and tensors, parametrizations and norms, in captured code against eager torch on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

import jaxtorch
from jaxtorch.capture.errors import CaptureError

Tensor = torch.Tensor


def linear() -> Any:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))


class Two(nn.Module):
    """Two inputs, of which the second may need no gradient, a number between, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor, scale: float, y: Tensor) -> Any:
        return self.inner(x) * y * scale, x * y


class Calls(nn.Module):
    def __init__(self, inner: Any, detached: bool) -> None:
        super().__init__()
        self.inner, self.detached = inner, detached

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.inner(x * 2, 3.0, x.detach() if self.detached else x.sin())
        return a + b


def _full() -> Any:
    model = linear()
    model[0].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2 + go[0],))
    model[2].register_full_backward_hook(lambda m, gi, go: None)
    return model


def _pre() -> Any:
    model = linear()
    model[2].register_full_backward_pre_hook(lambda m, go: (go[0].clamp(max=0.5),))
    model[2].register_full_backward_pre_hook(lambda m, go: None)
    model[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * go[0].sum() * m.weight.sum(),))
    return model


def _two(detached: bool) -> Any:
    model = Calls(Two(), detached)

    def hook(module: Any, gi: Any, go: Any) -> Any:
        return gi[0] * go[1] + gi[2], gi[1], gi[2] * go[0]

    model.inner.register_full_backward_hook(hook)
    return model


def _nested() -> Any:
    model = nn.Sequential(_full(), nn.Linear(3, 3))
    model.register_full_backward_hook(lambda m, gi, go: (gi[0] * 5,))
    model[0].register_full_backward_pre_hook(lambda m, go: (go[0] * 7,))
    return model


def _after_pre_hook() -> Any:
    """What the hook sees is the gradient of what the forward pre-hook made."""
    model = linear()
    model[2].register_forward_pre_hook(lambda m, args: (args[0] * 10,))
    model[2].register_forward_hook(lambda m, args, out: out * 3)
    model[2].register_full_backward_hook(lambda m, gi, go: (gi[0].clamp(-0.1, 0.1) + go[0].sum(),))
    return model


def _removed() -> Any:
    model = linear()
    model[0].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,)).remove()
    return model


def _batch_norm() -> Any:
    """In float64, because the squares of normalized numbers have a constant sum: the gradients are all rounding."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    model.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    return model


class _Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).T


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        parametrize.register_parametrization(self.layer, "weight", _Symmetric())

    def forward(self, x: Tensor) -> Tensor:
        with parametrize.cached():
            return self.layer(self.layer(x))


class Hooked(nn.Module):
    """Hooks on tensors that the forward makes."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.sin()
        hidden.register_hook(lambda g: g * 3)
        hidden.register_hook(lambda g: g + 1)
        copy = hidden[0].clone()
        copy.register_hook(lambda g: g.clamp(max=0.5))
        return hidden * copy


MODELS: dict[str, Callable[[], Any]] = {
    "full": _full,
    "pre": _pre,
    "two inputs": lambda: _two(False),
    "one of them detached": lambda: _two(True),
    "nested": _nested,
    "after a forward pre-hook": _after_pre_hook,
    "removed": _removed,
    "batch norm": _batch_norm,
    "of tensors": Hooked,
    "parametrize": lambda: parametrize.register_parametrization(
        nn.Linear(4, 4), "weight", _Symmetric()
    ),
    "parametrize.cached": Cached,
    "orthogonal": lambda: orthogonal(nn.Linear(4, 4), orthogonal_map="cayley"),
    "weight_norm": lambda: weight_norm(nn.Linear(4, 3)),
    "old weight_norm": lambda: nn.utils.weight_norm(nn.Linear(4, 3)),
    "spectral_norm": lambda: spectral_norm(nn.Linear(4, 3)),
    "old spectral_norm": lambda: nn.utils.spectral_norm(nn.Linear(4, 3)),
}


def run(name: str, device: str, capture: str = "", inputs: bool = True) -> list[Any]:
    """Loss, gradients and buffers of two calls."""
    torch.manual_seed(0)
    model = MODELS[name]()
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    x = torch.randn(5, 4).to(dtype)
    model, x = model.to(device), x.to(device).requires_grad_(inputs)
    forward = jaxtorch.pure(model) if capture == "pure" else model

    def step() -> Tensor:
        loss = (forward(x) ** 2).sum()
        loss.backward()
        return loss.detach()

    step = jaxtorch.jit(step) if capture == "jit" else step
    losses = [step().cpu() for _ in range(2)]
    state = [x, *model.parameters()]
    return [
        *losses,
        *(t.grad.cpu() for t in state if t.grad is not None),
        *map(_cpu, model.buffers()),
    ]


def _cpu(t: Tensor) -> Tensor:
    return t.cpu()


# In a step torch's own engine runs, so that some will do there; `pure` code may not keep a tensor, as the old norms do.
WAYS = [(name, "pure") for name in MODELS if not name.startswith("old")]
WAYS += [(name, "jit") for name in ("full", "pre", "parametrize.cached", "weight_norm")]
WAYS += [(name, "jit") for name in MODELS if name.startswith("old")]


@pytest.mark.filterwarnings("ignore:.*is deprecated")
@pytest.mark.parametrize(("name", "capture"), WAYS)
def test_as_in_eager_torch(name: str, capture: str) -> None:
    found, expected = run(name, "jax", capture), run(name, "cpu")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_a_module_whose_input_needs_no_gradient() -> None:
    def model() -> Any:
        made = linear()
        made[0].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
        made[0].register_full_backward_hook(lambda m, gi, go: (None,) if gi == (None,) else gi)
        return made

    MODELS["no gradient"] = model
    try:
        found, expected = (
            run("no gradient", *way, inputs=False) for way in (("jax", "pure"), ("cpu",))
        )
    finally:
        del MODELS["no gradient"]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("capture", ["pure", "jit"])
def test_a_hook_of_all_modules(capture: str) -> None:
    def hook(module: Any, gi: Any, go: Any) -> Any:
        return tuple(None if g is None else g * 2 for g in gi) if type(module) is nn.Tanh else None

    MODELS["linear"] = linear
    handle = nn.modules.module.register_module_full_backward_hook(hook)
    try:
        found, expected = run("linear", "jax", capture), run("linear", "cpu")
    finally:
        handle.remove()
        del MODELS["linear"]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def _keeping(model: Any) -> None:
    seen: list[Any] = []
    model.register_full_backward_hook(lambda m, gi, go: seen.append(go))


def _old(model: Any) -> None:
    model.register_backward_hook(lambda m, gi, go: None)


@pytest.mark.parametrize(
    ("register", "words"), [(_keeping, "hook of Linear stores"), (_old, "register_full_backward")]
)
def test_module_hooks_that_are_refused(register: Any, words: str) -> None:
    model = nn.Linear(4, 4).to("jax")
    register(model)
    with pytest.raises(CaptureError, match=words):
        jaxtorch.pure(model)(torch.ones(2, 4, device="jax", requires_grad=True))


def _late(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    z = y.sin()
    y.register_hook(lambda g: g * 3)
    return z * y


def _of_a_leaf(x: Tensor, w: Tensor) -> Tensor:
    w.register_hook(lambda g: g * 3)
    return x * w


def _of_a_view(x: Tensor, w: Tensor) -> Tensor:
    y = (x * w)[:2]
    y.register_hook(lambda g: g * 3)
    return y.sin()


def _retained(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    y.retain_grad()
    y.sin().sum().backward(retain_graph=True)
    return (y.grad.detach() * y).sin()  # type: ignore[union-attr]


def _accumulated(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        w.register_post_accumulate_grad_hook(lambda p: p.sub_(p.grad * 0.1))
    return x * w


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_late, "already been used"),
        (_of_a_leaf, "created outside"),
        (_of_a_view, "a view of another"),
        (_accumulated, None),
        (_retained, None),
    ],
)
def test_hooks_of_tensors(function: Any, words: str | None) -> None:
    """In a step all work, for torch's engine runs; `pure` says what it cannot do."""

    def step(device: str, wrap: Any) -> Any:
        torch.manual_seed(0)
        x, w = (torch.randn(4).to(device).requires_grad_() for _ in range(2))

        def run() -> None:
            function(x, w).sum().backward()

        wrap(run)()
        return [t.detach().cpu() for t in (x.grad, w.grad, w)]  # type: ignore[union-attr]

    torch.testing.assert_close(step("jax", jaxtorch.jit), step("cpu", lambda f: f))
    if words is not None:
        x = torch.ones(4, device="jax", requires_grad=True)
        with pytest.raises(CaptureError, match=words):
            jaxtorch.pure(function)(x, x.detach().clone().requires_grad_())
