"""Random torch programs: the same values and gradients eagerly, in `pure` and in `jit`.

A program is a list of instructions over a stack of tensors: arithmetic, views, in-place writes through views,
reductions, branches and loops on Python values, `detach` and `no_grad`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jaxtorch

Tensor = torch.Tensor
PROGRAMS = int(os.environ.get("JAXTORCH_CAPTURED_PROGRAMS", "12"))

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "sin": torch.sin,
    "tanh": lambda x: torch.tanh(x) * 2,
    "square": lambda x: x * x * 0.1,
    "softmax": lambda x: x.softmax(-1),
    "detach": lambda x: x.detach(),
    "relu": torch.relu,
    "clone": lambda x: x.clone(),
    "double": lambda x: (x.double() * 1.5).float(),
}
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "t": lambda x: x.mT,
    "row": lambda x: x[1:2] if x.shape[0] > 1 else x,
    "columns": lambda x: x[:, ::2],
    "reshape": lambda x: x.reshape(-1, 2) if x.numel() % 2 == 0 else x,
    "flip": lambda x: x.flip(0),
    "expand": lambda x: x[:1].expand(3, x.shape[1]),
}


def write(x: Tensor, index: int, value: float) -> Tensor:
    """In place, through a view of a copy."""
    copy = x.clone()
    copy[index % copy.shape[0]].mul_(value)
    copy.mT[0].add_(x.mean())
    return copy


def under_no_grad(x: Tensor) -> Tensor:
    """A factor that is a constant to the gradient."""
    with torch.no_grad():
        factor = x.abs().mean() + 1
    return x / factor


def branch(x: Tensor, value: float) -> Tensor:
    """Control flow on Python values."""
    for i in range(2 if value > 0 else 1):
        x = x + i * value
    return x if x.shape[0] > 2 else -x


def join(x: Tensor, y: Tensor) -> Tensor:
    """Two tensors of any sizes."""
    return x * y.mean() + y.sum() * 0.01


instruction = st.one_of(
    st.tuples(st.just("unary"), st.sampled_from(sorted(UNARY))),
    st.tuples(st.just("view"), st.sampled_from(sorted(VIEWS))),
    st.tuples(st.just("write"), st.integers(0, 5), st.sampled_from([0.5, -1.0, 2.0])),
    st.tuples(st.just("no_grad")),
    st.tuples(st.just("branch"), st.sampled_from([0.5, -0.5])),
    st.tuples(st.just("join"), st.integers(0, 5)),
)


def run(program: list[Any], x: Tensor, w: Tensor) -> Tensor:
    """Run a program; a number that depends on everything it made."""
    stack = [x, w, x @ w]
    for name, *operands in program:
        top = stack[-1]
        if name == "unary":
            top = UNARY[operands[0]](top)
        elif name == "view":
            top = VIEWS[operands[0]](top)
        elif name == "write":
            top = write(top, *operands)
        elif name == "no_grad":
            top = under_no_grad(top)
        elif name == "branch":
            top = branch(top, *operands)
        else:
            top = join(top, stack[operands[0] % len(stack)])
        stack.append(top)
    return torch.stack([(t * t).mean() for t in stack]).sum()


@settings(max_examples=PROGRAMS, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(instruction, max_size=7))
def test_the_same_eagerly_and_captured(program: list[Any]) -> None:
    def leaves() -> list[Tensor]:
        torch.manual_seed(0)
        return [torch.randn(4, 4).to("jax").requires_grad_() for _ in range(2)]

    x, w = leaves()
    expected = run(program, x, w)
    expected.backward()
    a, b = leaves()
    loss = jaxtorch.pure(lambda a, b: run(program, a, b))(a, b)
    loss.backward()
    c, d = leaves()

    @jaxtorch.jit
    def step() -> Tensor:
        loss = run(program, c, d)
        loss.backward()
        return loss

    captured = step()
    # Squares of squares overflow, and their difference is nan, the same in all three.
    pairs = [(loss.detach(), expected.detach()), (captured, expected.detach())]
    pairs += [(own.grad, eager.grad) for own, eager in ((a, x), (b, w), (c, x), (d, w))]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
