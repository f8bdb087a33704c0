"""`jaxtorch.scan` whose body returns its inputs or views of them, against the Python loop: values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import jaxtorch

Step = Callable[[Any, Any], tuple[Any, Any]]


def data(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape, device="jax")


ALIASES: dict[str, Step] = {
    "the carry": lambda c, x: (c, None),
    "a view": lambda c, x: ((c[0].view(3), c[1][:1].expand(3)), ()),
    "detached": lambda c, x: ((c[0].detach(), c[1]), None),
    "one of two": lambda c, x: ((c[0], c[1] * x), None),
    "one twice": lambda c, x: ((c[0], c[0]), {}),
    "exchanged": lambda c, x: ((c[1], c[0]), None),
    "handed on": lambda c, x: ((x, c[0]), None),
    "an element": lambda c, x: ((x, x), None),
    "the carry, kept": lambda c, x: (c, (c[0], x)),
    "handed on, kept": lambda c, x: ((x, c[0]), c[1]),
}


@pytest.mark.parametrize("step", ALIASES.values(), ids=ALIASES.keys())
@pytest.mark.parametrize(
    ("needs", "length"), [("", 3), ("a", 3), ("b", 3), ("x", 3), ("abx", 1), ("abx", 2)]
)
def test_a_carry_that_aliases_its_input(step: Step, needs: str, length: int) -> None:
    def check(result: Any, leaves: list[torch.Tensor], other: Any, others: Any) -> None:
        ours, theirs = ([t for t in tree_leaves(r) if t is not None] for r in (result, other))
        torch.testing.assert_close(ours, theirs)
        assert [t.requires_grad for t in ours] == [t.requires_grad for t in theirs]
        for outputs, inputs in ((ours, leaves), (theirs, others)):
            if any(t.requires_grad for t in outputs):
                sum((t.exp() * (i + 1)).sum() for i, t in enumerate(outputs)).backward()
            assert all(t.grad is None for t in inputs if not t.requires_grad)
        torch.testing.assert_close([t.grad for t in leaves], [t.grad for t in others])

    def inputs() -> list[torch.Tensor]:
        tensors = [data(3), data(3) + 1, data(length, 3)]
        return [t.requires_grad_(n in needs) for t, n in zip(tensors, ["a", "b", "x"], strict=True)]

    captured = jaxtorch.pure(lambda a, b, x: jaxtorch.scan(step, (a, b), x))
    for scan in (lambda a, b, x: jaxtorch.scan(step, (a, b), x), captured):
        a, b, x = mine = inputs()
        c, d, y = others = inputs()
        carry, ys = (c, d), []
        for i in range(length):
            carry, kept = step(carry, y[i])
            ys.append(kept)
        stacked = [
            torch.stack(leaves)
            for leaves in zip(*map(tree_leaves, ys), strict=True)
            if None not in leaves
        ]
        check(scan(a, b, x), mine, (carry, stacked), others)


def test_the_result_does_not_share_memory_with_what_it_aliases() -> None:
    a, b, x = data(3), data(3) + 1, data(4, 3)
    before = [a.clone(), b.clone(), x.clone()]
    for step in ALIASES.values():
        for way in (lambda f: f, jaxtorch.pure, jaxtorch.jit):
            carry, _ = way(lambda step=step: jaxtorch.scan(step, (a, b), x))()
            carry[0].add_(1)
            second = carry[1].clone()
            carry[0].zero_()
            torch.testing.assert_close(carry[1], second)
            torch.testing.assert_close([a, b, x], before)
