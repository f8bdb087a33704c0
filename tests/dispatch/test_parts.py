"""Calls over long lists, which run in parts: few kernels to compile, results and errors as of one program."""

from __future__ import annotations

import collections
import random
import threading
from collections.abc import Callable
from itertools import chain
from typing import Any

import jax
import pytest
import torch

import jaxtorch
from jaxtorch.dispatch import executable, parts
from jaxtorch.dispatch.partition import parts_of
from jaxtorch.programs import stats

Tensor = torch.Tensor
SHAPES = [(3,), (2, 3), (3,), (), (0,), (2, 3)] * 6 + [(5,), (4, 1)]


def _lists(count: int, dtype: torch.dtype = torch.float32) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        [torch.rand(shape, generator=generator).to(dtype) + 0.5 for shape in SHAPES]
        for _ in range(count)
    ]


def _on_device(a: Any) -> Any:
    if isinstance(a, list):
        return [_on_device(item) for item in a]
    return a.to("jax") if isinstance(a, Tensor) else a


def _compiled(run: Callable[[], object]) -> list[stats.ProgramRecord]:
    """The programs that a call compiles."""
    before = len(stats.compiled)
    run()
    return list(stats.compiled)[before:]


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each position is a part."""
    monkeypatch.setattr(parts, "parts_of", lambda kinds, numbered: [[i] for i in range(len(kinds))])


@pytest.fixture
def in_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each list is three parts, whose positions are not in order."""

    def divided(kinds: list[Any], numbered: bool) -> list[list[int]]:
        return [list(range(len(kinds)))[i::3][::-1] for i in (2, 0, 1)]

    monkeypatch.setattr(parts, "parts_of", divided)


# -- how positions are divided ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_every_position_is_in_one_part(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [rng.choice("abcdefgh"[: 1 + seed % 8]) for _ in range(rng.randrange(1, 90))]
    divided = parts_of(kinds, numbered=seed % 2 == 0)
    assert sorted(i for part in divided for i in part) == list(range(len(kinds)))


@pytest.mark.parametrize(
    ("kinds", "most"),
    [
        (["weight", "bias"] * 50, 16),
        (["norm"] * 74 + ["qkv", "b", "up", "c", "down", "out"] * 12 + ["head"], 18),
        # A residual network: few convolutions of each shape, many normalizations.
        (
            [f"norm{i}" for i in range(4)] * 10 + [f"conv{i}" for i in range(4)] * 4 + [*"uvwxyz"],
            18,
        ),
    ],
)
def test_few_kernels_are_compiled(kinds: list[str], most: int) -> None:
    divided = parts_of(kinds, numbered=True)
    programs = {tuple(kinds[i] for i in part) for part in divided}
    assert sum(map(len, programs)) <= most
    assert len(divided) < len(kinds) / 2


def test_equal_kernels_of_one_program_are_cheap() -> None:
    kinds = ["weight", "bias"] * 50
    assert len(parts_of(kinds, numbered=False)) < len(parts_of(kinds, numbered=True))


def test_a_call_over_many_tensors_compiles_few() -> None:
    tensors = [torch.ones(3 + i % 2, device="jax") for i in range(100)]
    new = _compiled(lambda: torch._foreach_add_(tensors, [float(i) for i in range(100)]))
    assert sum(len(p.avals) - 1 for p in new) <= 20  # without the numbers
    assert [t[0].item() for t in tensors] == [i + 1.0 for i in range(100)]


def test_different_kinds_stay_one_program() -> None:
    assert len(parts_of(range(40), numbered=True)) == 1


# -- results ---------------------------------------------------------------------------------------

CALLS: dict[str, Callable[..., Any]] = {
    "in place": lambda a, b, c: torch._foreach_addcdiv_(a, b, c, 0.5),
    "in place, numbers": lambda a, b, c: torch._foreach_addcdiv_(
        a, b, c, [0.1 * i for i in range(len(a))]
    ),
    "numbers of two kinds": lambda a, b, c: torch._foreach_add_(
        a, [i if i % 2 else 0.5 for i in range(len(a))]
    ),
    "new": lambda a, b, c: torch._foreach_mul(a, b),
    "static numbers": lambda a, b, c: torch._foreach_pow(a, [float(i % 3) for i in range(len(a))]),
    "a tensor for all": lambda a, b, c: torch._foreach_mul_(a, c[3]),
    "a tensor read twice": lambda a, b, c: torch._foreach_sub_(a, [c[3]] * len(a)),
    "other dtype": lambda a, b, c: torch._foreach_copy_(a, [t.double() for t in b]),
    "norms": lambda a, b, c: torch._foreach_norm(a, 2.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_the_cpu(in_three: None, name: str) -> None:
    expected = _lists(3)
    actual = _on_device(expected)
    run = CALLS[name]
    programs: list[stats.ProgramRecord] = []
    for _ in range(2):  # the second call finds its parts
        results: list[Any] = []
        new = _compiled(lambda: results.append(run(*actual)))  # noqa: B023
        programs += [p for p in new if "_foreach" in p.name]
        wanted = run(*expected)
        for a, e in zip(results[0] or [], wanted or [], strict=True):
            torch.testing.assert_close(a.cpu(), e)
        for a, e in zip(chain(*actual), chain(*expected), strict=True):
            torch.testing.assert_close(a.cpu(), e)
    assert len(programs) > 1


@pytest.mark.parametrize("operator", ["adamw", "sgd", "adagrad"])
def test_fused_steps_are_those_of_the_cpu(in_three: None, operator: str) -> None:
    expected = _lists(5)
    steps = [torch.tensor(float(i % 3 + 1)) for i in range(len(SHAPES))]
    options = {"lr": 0.1, "weight_decay": 0.01, "maximize": False}

    def step(lists: list[list[Tensor]], counts: list[Tensor]) -> None:
        if operator == "adamw":
            torch._fused_adamw_(
                *lists, counts, beta1=0.9, beta2=0.99, eps=1e-8, amsgrad=True, **options
            )
        elif operator == "sgd":
            torch._fused_sgd_(
                *lists[:3],
                momentum=0.9,
                dampening=0.1,
                nesterov=True,
                is_first_step=False,
                **options,
            )
        else:
            torch._fused_adagrad_(*lists[:3], counts, lr_decay=0.1, eps=1e-8, **options)

    actual, counts = _on_device(expected), _on_device(steps)
    new = _compiled(lambda: step(actual, counts))
    assert 1 < len(new) <= 3
    step(expected, steps)
    for a, e in zip(chain(*actual), chain(*expected), strict=True):
        torch.testing.assert_close(a.cpu(), e)


def test_views_of_different_buffers(in_three: None) -> None:
    wholes = [torch.arange(12.0).view(3, 4) + i for i in range(20)]
    on_device = _on_device(wholes)
    for which in (wholes, on_device):
        torch._foreach_mul_([w[i % 3, 1:3] for i, w in enumerate(which)], 2.0)
    for a, e in zip(on_device, wholes, strict=True):
        assert a.tolist() == e.tolist()


# -- shared memory ---------------------------------------------------------------------------------


def test_one_tensor_twice(in_three: None) -> None:
    tensors = [torch.full((3,), float(i), device="jax") for i in range(20)]
    new = _compiled(lambda: torch._foreach_mul_([*tensors, tensors[0]], 2.0))
    assert len(new) == 1
    assert [t[0].item() for t in tensors] == [2.0 * i for i in range(20)]


def test_views_of_one_buffer(in_three: None) -> None:
    for base in (torch.zeros(40), torch.zeros(40, device="jax")):
        torch._foreach_add_(list(base.split(2)), [float(i) for i in range(20)])
        assert base.tolist() == [float(i // 2) for i in range(40)]


def test_a_tensor_that_is_written_and_read(in_three: None) -> None:
    tensors = [torch.full((2,), float(i)) for i in range(20)]
    others = [tensors[0], *(t + 1 for t in tensors[1:])]
    actual = _on_device(tensors)
    also = [actual[0], *_on_device(others[1:])]
    torch._foreach_add_(tensors, others)
    torch._foreach_add_(actual, also)
    assert [t.tolist() for t in actual] == [t.tolist() for t in tensors]


def test_an_array_that_is_held_keeps_its_values(in_three: None) -> None:
    tensors = [torch.ones(3, device="jax") for _ in range(20)]
    held = jaxtorch.to_jax(tensors[7])
    torch._foreach_mul_(tensors, 2.0)
    assert held.tolist() == [1.0] * 3
    assert tensors[7].tolist() == [2.0] * 3


# -- errors ----------------------------------------------------------------------------------------


def _bad_calls() -> dict[str, Callable[[list[Tensor], list[Tensor]], object]]:
    last = torch.ones(7, 7)
    return {
        "shape": lambda a, b: torch._foreach_add_(a, [*b[:-1], _like(a, last)]),
        "length": lambda a, b: torch._foreach_add_(a, b[:-1]),
        "numbers": lambda a, b: torch._foreach_add_(a, [1.0] * 3),
        "overflow": lambda a, b: torch._foreach_mul_(
            [*a[:-1], _like(a, torch.ones(1, dtype=torch.int8))], [1] * (len(a) - 1) + [1000]
        ),
        "dtype": lambda a, b: torch._foreach_add_(
            [*a[:-1], _like(a, torch.ones(1, dtype=torch.int32))], 0.5
        ),
    }


def _like(a: list[Tensor], t: Tensor) -> Tensor:
    return t.to(a[0].device)


@pytest.mark.parametrize("name", _bad_calls())
def test_an_error_leaves_all_tensors_as_they_were(in_three: None, name: str) -> None:
    lists = _on_device(_lists(2))
    before = [[t.tolist() for t in of] for of in lists]
    with pytest.raises(RuntimeError):
        _bad_calls()[name](*lists)
    assert [[t.tolist() for t in of] for of in lists] == before


def test_an_error_of_the_compiler_leaves_all_tensors_as_they_were(
    one_by_one: None, monkeypatch: Any
) -> None:
    tensors = [torch.full((11 + i % 3,), 2.0, device="jax") for i in range(31)]
    compiled: list[int] = []
    compile_ = parts.Program.compiled

    def failing(self: Any) -> Any:
        compiled.append(1)
        if len(compiled) == 11:  # of the last part
            raise RuntimeError("no memory")
        return compile_(self)

    monkeypatch.setattr(parts.Program, "compiled", failing)
    with pytest.raises(RuntimeError, match="no memory"):
        torch._foreach_mul_(tensors, 3.0)
    monkeypatch.undo()
    assert {t[0].item() for t in tensors} == {2.0}


def test_a_part_whose_array_another_thread_replaces_runs_again(
    one_by_one: None, monkeypatch: Any
) -> None:
    """Only that part and those after it: a part that ran twice would have multiplied twice."""
    tensors = [torch.full((2,), float(i), device="jax") for i in range(20)]
    prepare = parts._prepared
    seen: collections.Counter[int] = collections.Counter()

    def stale(*args: Any) -> Any:
        ready = prepare(*args)
        target = ready.targets[0]
        seen[id(target)] += 1
        if len(seen) == 8 and seen[id(target)] == 1:
            array = target.array
            target.array = jax.numpy.copy(array)  # as another thread's write would
            array.delete()
        return ready

    monkeypatch.setattr(parts, "_prepared", stale)
    torch._foreach_mul_(tensors, 3.0)
    assert [t[0].item() for t in tensors] == [3.0 * i for i in range(20)]
    assert max(seen.values()) == 2


# -- traces ----------------------------------------------------------------------------------------


def test_captured_code_is_one_program() -> None:
    tensors = [torch.ones(3, device="jax") for _ in range(20)]

    @jaxtorch.jit
    def double() -> None:
        torch._foreach_mul_(tensors, 2.0)

    double()
    assert not [p for p in _compiled(double) if "_foreach" in p.name]
    assert tensors[5].tolist() == [4.0] * 3


def test_parts_are_compiled_side_by_side_on_behalf_of_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: set[int] = set()
    finish = executable.finish

    def noted(*args: Any, **kwargs: Any) -> Any:
        threads.add(threading.get_ident())
        return finish(*args, **kwargs)

    monkeypatch.setattr(executable, "finish", noted)
    shapes: list[tuple[int, ...]] = [(41,), (2, 43)] * 9 + [(5, 47), (44, 1)]
    tensors = [torch.randn(shape).to("jax") for shape in shapes]
    factors = [float(i + 2) for i in range(len(shapes))]
    before = len(stats.compiled)
    results = torch._foreach_mul(tensors, factors)
    records = stats.compiled[before:]
    assert len(records) > 1
    assert threading.get_ident() not in threads
    assert all(r.site is not None and r.site[0] == __file__ for r in records)
    for result, tensor, factor in zip(results, tensors, factors, strict=True):
        assert torch.equal(result.cpu(), tensor.cpu() * factor)
