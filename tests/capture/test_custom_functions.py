"""`autograd.Function` in captured code, against eager torch on the CPU: what its context offers, and its edges."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import FunctionCtx, once_differentiable

import jaxtorch
from jaxtorch.capture.errors import CaptureError

Tensor = torch.Tensor


class SeesNone(Function):
    """Which cotangents are None decides the gradient: it is not linear, so that zeros would be seen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> Any:
        if a is None:
            return b, b * 7  # type: ignore[operator]
        return (a * 2, None) if b is None else (a + b, b)


class Zeros(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> Any:
        return a + 1, b + 1


class Keeps(Function):
    """What it keeps on its context: a list of tensors, None among what it saves, plain values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, scale: float) -> Tensor:
        ctx.parts = {"exp": x.exp(), "others": [y.sin(), 3.0]}
        ctx.scale = scale
        ctx.save_for_backward(x, None, y)
        ctx.save_for_forward(x)
        return x * y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, none, y = ctx.saved_tensors
        assert none is None
        first = g * y * ctx.parts["exp"] * ctx.scale
        return first, g * x * ctx.parts["others"][0] * ctx.parts["others"][1], None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise AssertionError("no forward-mode AD here")


class Odd(Function):
    """Outputs other than tensors; a gradient wider than its input; fewer inputs that need one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        assert ctx.needs_input_grad == (True, False)
        ctx.save_for_backward(y)
        return None, x + y, "word", (x > y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, a: None, g: Tensor, b: None, c: Any) -> Any:
        (y,) = ctx.saved_tensors
        return torch.stack([g, g * y]), g * 100


class Doubles(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 5


class Boxed(Function):
    """Its backward gets a list, of which it may free each gradient early."""

    boxed_grads_call = True

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, gradients: list[Tensor]) -> Tensor:
        total = gradients.pop() * 5
        return total + gradients.pop() * 7


class Rounded(Function):
    """A straight-through estimator: without its own backward there is no gradient."""

    @staticmethod
    def forward(x: Tensor, steps: float = 1.0) -> Tensor:
        return (x * steps).round() / steps

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.steps = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.steps, None


class Named(Keeps):
    """Has an `apply` of its own, with a default."""

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        return super().apply(*args, 0.5)


# Names that the functions had before any code was captured.
rounded, keeps, named = Rounded.apply, Keeps.apply, Named.apply
by_half = functools.partial(Rounded.apply, steps=0.5)


class Several(Function):
    """Its first result and its first arguments have no gradient."""

    @staticmethod
    def forward(ctx: Any, scale: float, mask: Tensor, x: Tensor, y: Tensor) -> Any:
        ctx.save_for_backward(mask, x)
        ctx.scale = scale
        result = x * y * scale
        above = result > 1
        ctx.mark_non_differentiable(above)
        return above, x + y, 7, result

    @staticmethod
    def backward(ctx: Any, above: Tensor, total: Tensor, number: None, result: Tensor) -> Any:
        mask, x = ctx.saved_tensors
        return None, None, total * 5 + result * mask, result * x * ctx.scale


class Scaled(Function):
    """One with a `setup_context`."""

    @staticmethod
    def forward(x: Tensor, scale: Tensor) -> Tensor:
        return x * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, scale = ctx.saved_tensors
        return g * scale + 1, g * x * 3


# As code keeps them, from before any trace.
several, scaled, doubles = Several.apply, Scaled.apply, Doubles.apply


def _differentiated_inside(x: Tensor, y: Tensor) -> Tensor:
    """The gradients pass nodes of torch's C++ (`capture/applied.py`)."""
    a, b = x * 2, y * 3
    above, total, number, result = several(0.5, (x > 0).float(), a, b)
    assert number == 7
    assert not above.requires_grad
    value = scaled(doubles(total * 1), result).sum() + (above * x).sum()
    first, second = torch.autograd.grad(value, (a, b), create_graph=True)
    return value + first.sum() + (second * b).sum()


def _dirty(x: Tensor, y: Tensor) -> Tensor:
    hidden = x * y
    before = hidden + 3
    result = Doubles.apply(hidden)
    assert result is hidden
    return before + hidden * y


class Sequential:
    def __init__(self, *functions: Any) -> None:
        self.functions = functions

    def __call__(self, x: Tensor) -> Tensor:
        return functools.reduce(lambda x, f: f(x), self.functions, x)


def _odd(x: Tensor, y: Tensor) -> Tensor:
    none, result, word, larger = Odd.apply(x, y.detach())
    assert none is None
    assert word == "word"
    return result * larger * y


def _nested(x: Tensor, y: Tensor) -> Tensor:
    a, _ = SeesNone.apply(x, y)
    _, b = SeesNone.apply(a, Keeps.apply(x, y, 0.5))
    return a * b


CASES = {
    "one result with a gradient": lambda x, y: several(0.5, (x > 0).float(), x * 1, y * 2)[3],
    "a list of gradients": lambda x, y: sum(Boxed.apply(x * 1)) * y,
    "gradients inside": _differentiated_inside,
    "None for the second": lambda x, y: SeesNone.apply(x, y)[0],
    "None for the first": lambda x, y: SeesNone.apply(x, y)[1],
    "both": lambda x, y: torch.stack(SeesNone.apply(x, y)),
    "zeros for the second": lambda x, y: Zeros.apply(x, y)[0],
    "zeros for the first": lambda x, y: Zeros.apply(x, y)[1],
    "what it keeps": lambda x, y: Keeps.apply(x, y, 0.5),
    "a detached input": lambda x, y: Keeps.apply(x, x.detach() * y.detach(), 2.0),
    "odd outputs": _odd,
    "dirty": _dirty,
    "nested": _nested,
    "by a name": lambda x, y: keeps(x, y, 0.5) * rounded(x),
    "by a name that stands for a partial call": lambda x, y: by_half(x) * y,
    "with a keyword": lambda x, y: rounded(x, steps=4.0) * y,
    "by an apply of its own": lambda x, y: named(x, y) * Named.apply(y, x),
    "by the name of an instance": lambda x, y: Sequential(rounded, torch.sin)(x) * y,
    "one in no_grad": lambda x, y: Keeps.apply(x.detach(), y.detach(), 2.0) * x,
}


def gradients(device: str, name: str, wrap: Any) -> Any:
    torch.manual_seed(0)
    x, y = (torch.randn(4).to(device).requires_grad_() for _ in range(2))

    def step() -> Tensor:
        loss = (wrap(lambda: CASES[name](x, y))() ** 2).sum()
        loss.backward()
        return loss.detach()

    loss = jaxtorch.jit(step)() if wrap is _plain and device == "jax" else step()
    return [loss.cpu(), *(None if t.grad is None else t.grad.cpu() for t in (x, y))]


def _plain(function: Any) -> Any:
    return function


@pytest.mark.parametrize("wrap", [jaxtorch.pure, _plain], ids=["pure", "jit"])
@pytest.mark.parametrize("name", CASES)
def test_as_in_eager_torch(name: str, wrap: Any) -> None:
    found = gradients("jax", name, wrap)
    expected = gradients("cpu", name, _plain)
    assert [g is None for g in found] == [g is None for g in expected]
    for mine, their in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, their)


class Writes(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.mul_(2) + 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


class TooFew(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


class Five(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return tuple(x * i for i in range(5))

    @staticmethod
    def backward(ctx: Any, *g: Tensor | None) -> Any:
        return g[0]


REFUSED = {
    "an unmarked write": (lambda x: Writes.apply(x * 1), CaptureError, "mark_dirty"),
    "too few gradients": (lambda x: TooFew.apply(x, x), RuntimeError, "number of gradients"),
    "too many cases": (lambda x: Five.apply(x)[0], CaptureError, "set_materialize_grads"),
    "a leaf": (
        lambda x: Doubles.apply(x),
        RuntimeError,
        "a leaf Variable that requires grad",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_said(name: str) -> None:
    function, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        jaxtorch.pure(function)(torch.ones(2, device="jax", requires_grad=True))


class Cubed(Function):
    """New style, as `torch.func` asks for."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * x * 10


@pytest.mark.parametrize("name", ["grad", "vmap", "jacrev"])
def test_under_torch_func_inside(name: str) -> None:
    transform = getattr(torch.func, name)

    def f(x: Tensor) -> Tensor:
        return transform(lambda x: Cubed.apply(x).sum())(x).sum()

    def run(device: str, wrap: Any) -> Any:
        x = torch.arange(3.0, device=device, requires_grad=True)
        y = wrap(f)(x)
        y.backward()
        return y.detach().cpu(), x.grad.cpu()

    torch.testing.assert_close(run("jax", jaxtorch.pure), run("cpu", _plain))


class Double(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


class SquareByDouble(Double):
    """Its backward calls another Function, with a saved tensor."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        doubled: Tensor = Double.apply(x)
        return doubled * gradient


@pytest.mark.parametrize("capture", [lambda f: f, jaxtorch.pure, jaxtorch.jit])
def test_a_backward_that_runs_after_its_transform_has_ended(capture: Any) -> None:
    def f(x: Tensor) -> Tensor:
        _, pullback = torch.func.vjp(SquareByDouble.apply, x)
        (gradient,) = pullback(x)
        return gradient

    x = torch.arange(3.0, device="jax", requires_grad=True)
    assert capture(f)(x).tolist() == [0.0, 2.0, 8.0]


class InDouble(Function):
    """The backward gets one gradient in float64, and looks for gradients that were added up before."""

    seen: list[torch.dtype]

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Any:
        ctx.set_output_grad_dtype(torch.float64, None)
        return x * scale, x + 1

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        InDouble.seen = [g.dtype, h.dtype]
        if hasattr(FunctionCtx, "input_grad_buffers"):  # from torch 2.15 on
            assert len(ctx.input_grad_buffers) == 2
        return (g * 5).to(h.dtype) + h, None


@pytest.mark.skipif(
    not hasattr(FunctionCtx, "set_output_grad_dtype"), reason="torch 2.14 brought this method"
)
@pytest.mark.parametrize("wrap", [jaxtorch.pure, _plain], ids=["pure", "jit"])
def test_dtypes_of_the_gradients_that_a_backward_gets(wrap: Any) -> None:
    def value(x: Tensor) -> Tensor:
        return sum(y.sum() for y in InDouble.apply(x * 2, 3.0))  # type: ignore[return-value]

    found = {}
    for device, function in (("cpu", value), ("jax", wrap(value))):
        x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
        function(x).backward()
        found[device] = InDouble.seen, x.grad.tolist()  # type: ignore[union-attr]
    assert found["jax"] == found["cpu"]


class Fails(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, fails: bool) -> Tensor:
        if fails:
            raise ZeroDivisionError
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 5, None


def test_another_thread_calls_functions_as_ever_while_one_traces() -> None:
    gradients: list[list[float]] = []

    def elsewhere() -> None:
        x = torch.ones(2, requires_grad=True)
        Fails.apply(x, False).sum().backward()
        gradients.append(x.grad.tolist())  # type: ignore[union-attr]

    def traced(x: Tensor) -> Tensor:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return Fails.apply(x, False).sum()

    x = torch.ones(2, device="jax", requires_grad=True)
    jaxtorch.pure(traced)(x).backward()
    assert [*gradients, x.grad.tolist()] == [[5.0, 5.0], [5.0, 5.0]]  # type: ignore[union-attr]


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_a_call_after_one_that_failed_in_a_trace(device: str) -> None:
    captured = jaxtorch.pure(lambda x, fails: Fails.apply(x, fails).sum())
    x = torch.ones(2, device="jax", requires_grad=True)
    with pytest.raises(ZeroDivisionError):
        captured(x, True)
    y = torch.ones(2, device=device, requires_grad=True)
    Fails.apply(y, False).sum().backward()
    captured(x, False).backward()
    assert [y.grad.tolist(), x.grad.tolist()] == [[5.0, 5.0]] * 2  # type: ignore[union-attr]
