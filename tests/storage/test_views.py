"""Views and writes through them, against the CPU: random programs on both devices, compared after every step."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

# `make fuzz` runs thousands, new ones each time; every other run the same few.
PROGRAMS = int(os.environ.get("JAXTORCH_VIEW_PROGRAMS", "150"))

Step = Callable[[torch.Tensor], torch.Tensor]


@st.composite
def view_step(draw: Any, shape: tuple[int, ...]) -> tuple[str, Step] | None:
    """One view operator that fits this shape."""
    dims = len(shape)
    choices = ["unsqueeze", "alias", "detach"]
    if dims:
        choices += ["select", "slice", "step", "transpose", "permute", "squeeze", "flatten"]
        choices += ["split", "expand", "unfold", "narrow", "movedim", "unflatten"]
    if dims >= 2:
        choices += ["diagonal", "t"]
    kind = draw(st.sampled_from(choices))
    if kind == "unsqueeze":
        d = draw(st.integers(-dims - 1, dims))
        return f"unsqueeze({d})", lambda x: x.unsqueeze(d)
    if kind in ("alias", "detach"):
        return kind, lambda x: x.detach()
    if kind == "diagonal":
        a, b = draw(st.permutations(range(dims)))[:2]
        o = draw(st.integers(-1, 1))
        return f"diagonal({o}, {a}, {b})", lambda x: x.diagonal(o, a, b)
    if kind == "t":
        return "transpose(-1, -2)", lambda x: x.transpose(-1, -2)
    d = draw(st.integers(0, dims - 1))
    n = shape[d]
    if kind in ("select", "narrow", "slice", "step", "unfold") and n == 0:
        return None
    if kind == "select":
        i = draw(st.integers(-n, n - 1))
        return f"select({d}, {i})", lambda x: x.select(d, i)
    if kind == "slice":
        a, b = sorted((draw(st.integers(0, n)), draw(st.integers(0, n))))
        return f"[{a}:{b}] of {d}", lambda x: x.narrow(d, a, b - a)
    if kind == "narrow":
        a = draw(st.integers(0, n - 1))
        return f"narrow({d}, {a}, 1)", lambda x: x.narrow(d, a, 1)
    if kind == "step":
        a, step = draw(st.integers(0, n - 1)), draw(st.integers(2, 3))
        index = (slice(None),) * d + (slice(a, None, step),)
        return f"[{a}::{step}] of {d}", lambda x: x[index]
    if kind == "unfold":
        size = draw(st.integers(1, n))
        step = draw(st.integers(1, 3))
        return f"unfold({d}, {size}, {step})", lambda x: x.unfold(d, size, step)
    if kind == "transpose":
        e = draw(st.integers(0, dims - 1))
        return f"transpose({d}, {e})", lambda x: x.transpose(d, e)
    if kind == "permute":
        order = draw(st.permutations(range(dims)))
        return f"permute({order})", lambda x: x.permute(*order)
    if kind == "movedim":
        e = draw(st.integers(0, dims - 1))
        return f"movedim({d}, {e})", lambda x: x.movedim(d, e)
    if kind == "squeeze":
        return f"squeeze({d})", lambda x: x.squeeze(d)
    if kind == "split":
        size = draw(st.integers(1, max(n, 1)))
        which = draw(st.integers(0, 3))
        return f"split({size}, {d})[{which}]", lambda x: (p := x.split(size, d))[which % len(p)]
    if kind == "unflatten":
        for k in (2, 3):
            if n and n % k == 0:
                return f"unflatten({d}, ({n // k}, {k}))", lambda x, k=k: x.unflatten(
                    d, (n // k, k)
                )
        return None
    if kind == "flatten":
        e = draw(st.integers(d, dims - 1))
        return f"flatten({d}, {e})", lambda x: x.flatten(d, e)
    if n == 1:
        k = draw(st.integers(1, 3))
        return f"expand({d}: {k})", lambda x: x.expand(*shape[:d], k, *shape[d + 1 :])
    return None


WRITES: dict[str, Step] = {
    "add_(1.5)": lambda x: x.add_(1.5),
    "mul_(2)": lambda x: x.mul_(2),
    "fill_(7)": lambda x: x.fill_(7.0),
    "zero_()": lambda x: x.zero_(),
    "copy_(row)": lambda x: x.copy_(
        torch.arange(x.shape[-1] if x.dim() else 1).to(x).reshape(-1 if x.dim() else ())
    ),
    # Bounded: sums past 2**24 depend on the order of addition.
    "add_(own sum)": lambda x: x.add_(x.sum().remainder(64)),
    "sub_(itself)": lambda x: x.sub_(x),
    "neg_()": lambda x: x.neg_(),
    "x[...] = 3": lambda x: x.__setitem__(..., 3.0) or x,
}


def _overlaps(x: torch.Tensor) -> bool:
    """Whether two elements share memory: torch refuses or leaves undefined what a write does then."""
    if not x.numel():
        return False
    places: set[int] = set()
    for index in (
        torch.cartesian_prod(*[torch.arange(n) for n in x.shape]).reshape(x.numel(), -1)
        if x.dim()
        else []
    ):
        place = int((index * torch.tensor(x.stride())).sum())
        if place in places:
            return True
        places.add(place)
    return False


def _compare(cpu: torch.Tensor, jax: torch.Tensor, program: list[str]) -> None:
    assert jax.shape == cpu.shape, program
    assert jax.stride() == cpu.stride(), program
    assert jax.storage_offset() == cpu.storage_offset(), program
    assert jax.is_contiguous() == cpu.is_contiguous(), program
    torch.testing.assert_close(jax.cpu(), cpu, rtol=0, atol=0, msg=lambda m: f"{program}: {m}")


@settings(
    max_examples=PROGRAMS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=PROGRAMS <= 150,
)
@given(st.data())
def test_random_programs_of_views_and_writes(data: st.DataObject) -> None:
    # Few distinct shapes: a program costs its compilations.
    shape = data.draw(
        st.sampled_from([(4, 6), (3, 4, 2), (12,), (2, 1, 6), (0, 3), (), (2, 3, 2, 2)])
    )
    numel = int(torch.Size(shape).numel())
    cpu = [torch.arange(numel, dtype=torch.float32).reshape(shape)]
    jax = [cpu[0].to("jax")]
    program = [f"arange({numel}).reshape{shape}"]
    for _ in range(data.draw(st.integers(2, 6))):
        i = data.draw(st.integers(0, len(cpu) - 1))
        if data.draw(st.booleans()):
            step = data.draw(view_step(tuple(cpu[i].shape)))
            if step is None:
                continue
            name, function = step
            try:
                new = function(cpu[i])
            except (RuntimeError, IndexError):
                with pytest.raises((RuntimeError, IndexError)):
                    function(jax[i])
                continue
            cpu.append(new)
            jax.append(function(jax[i]))
            program.append(f"{len(cpu) - 1} = {i}.{name}")
        else:
            if _overlaps(cpu[i]):
                continue
            name = data.draw(st.sampled_from(sorted(WRITES)))
            WRITES[name](cpu[i])
            WRITES[name](jax[i])
            program.append(f"{i}.{name}")
        for a, b in zip(cpu, jax, strict=True):
            _compare(a, b, program)


def test_view_of_view_write_reaches_the_base() -> None:
    x = torch.zeros(4, 6, device="jax")
    x[1:3].t()[2:4].add_(1)
    expected = torch.zeros(4, 6)
    expected[1:3].t()[2:4].add_(1)
    torch.testing.assert_close(x.cpu(), expected)


def test_an_index_that_changes_compiles_once() -> None:
    import jaxtorch

    x = torch.arange(48.0, device="jax").reshape(8, 6)
    total = x[0] + 1
    x[0] = 5
    before = jaxtorch.compile_count()
    for i in range(1, 8):
        total = x[i] + 1
        x[i] = 5
    assert jaxtorch.compile_count() == before
    assert total.cpu().tolist() == [43.0, 44, 45, 46, 47, 48]
    assert (x.cpu() == 5).all()


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.uint8, torch.float64, torch.int16, torch.bfloat16]
)
def test_views_of_another_dtype(dtype: torch.dtype) -> None:
    cpu = torch.arange(16, dtype=torch.float32).reshape(2, 8)
    jax = cpu.to("jax")
    assert torch.equal(jax.view(dtype).cpu(), cpu.view(dtype))
    cpu.view(dtype)[:, 1] = 3
    jax.view(dtype)[:, 1] = 3
    assert torch.equal(jax.cpu().view(torch.int32), cpu.view(torch.int32))


def test_complex_parts_are_views() -> None:
    cpu = torch.randn(3, 4, dtype=torch.complex64)
    jax = cpu.to("jax")
    for t in (cpu, jax):
        t.real.mul_(2)
        t.imag[1] = 7
        torch.view_as_real(t)[..., 0, 0] = -1
    assert torch.equal(jax.cpu(), cpu)
    assert torch.equal(jax.conj().cpu(), cpu.conj().resolve_conj())
    cpu.conj().mul_(2j)
    jax.conj().mul_(2j)
    torch.testing.assert_close(jax.cpu(), cpu)


def test_as_strided_out_of_bounds_is_refused() -> None:
    x = torch.zeros(4, device="jax")
    with pytest.raises(RuntimeError, match="out of bounds for storage"):
        x.as_strided((5,), (1,))
    with pytest.raises(RuntimeError, match="out of bounds for storage"):
        (x + 1).as_strided((2, 2), (2, 1), 1)


def test_resize_and_set_share_memory() -> None:
    x = torch.arange(6.0, device="jax")
    alias = x.view(2, 3)
    x.resize_(8)
    assert x.shape == (8,)
    x[0] = 9
    assert alias[0, 0].item() == 9
    y = torch.empty(0, device="jax").set_(alias)
    y.add_(1)
    assert x[0].item() == 10


def test_data_assignment_keeps_identity() -> None:
    p = torch.nn.Parameter(torch.zeros(3, device="jax"))
    p.data = torch.ones(3, device="jax")
    assert p.sum().item() == 3
    p.data.mul_(2)
    assert p.sum().item() == 6


def test_aliases_that_torch_makes_by_itself() -> None:
    """`matmul` folds its batch and unfolds the result in C++, without our kernels: the next reader must see it."""
    x, v = torch.randn(5, 4, 10), torch.randn(10)
    y = x.to("jax") @ v.to("jax")
    assert y.shape == (5, 4)
    torch.testing.assert_close((y + 1).cpu(), x @ v + 1)
    torch.testing.assert_close(torch.relu(y).cpu(), torch.relu(x @ v))


SAME: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda x: x,
    "an alias": lambda x: x.detach(),
    "the same view": lambda x: x.view(2, 6).view(3, 4),
    "another shape": lambda x: x.view(2, 6),
    "other strides": lambda x: x.as_strided((3, 4), (1, 3)),
    "another offset": lambda x: x[1:],
    "a copy": lambda x: x.clone(),
    "one that was set": lambda x: x.new_empty(0).set_(x),
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_tensors_that_are_set_to_the_same_memory(make: Step) -> None:
    answers = []
    for device in ("cpu", "jax"):
        x = torch.zeros(3, 4, device=device)
        answers.append((x.is_set_to(make(x)), make(x).is_set_to(x), x[1:].is_set_to(make(x))))
    assert answers[0] == answers[1]
