"""Copies and transfers compile no program while calls are few, and give what programs give."""

from __future__ import annotations

import copy
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import jaxtorch
from jaxtorch.dispatch import copies, filling, program, read
from jaxtorch.dispatch.copies import copies_of
from jaxtorch.programs import stats, watching

from ..deferred import modes

Tensor = torch.Tensor


def of(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(int(np.prod(size))).reshape(size).to(dtype)


def written(target: Tensor, source: Tensor) -> Tensor:
    assert target.copy_(source) is target
    return target


def all_written(targets: list[Tensor], sources: list[Tensor]) -> list[Tensor]:
    torch._foreach_copy_(targets, sources)
    return targets


def loaded(model: torch.nn.Module, n: int) -> object:
    model.load_state_dict(torch.nn.Linear(n, 3).state_dict() | {"bias": torch.arange(3.0)})
    return model.bias


LAST = torch.channels_last
# Each call for a size of its own, and a function that moves a tensor to the device.
CALLS: dict[str, Callable[[int, Callable[[Any], Any]], object]] = {
    "clone": lambda n, on: on(of(n, 3)).clone(),
    "clone of bool": lambda n, on: on(of(n, dtype=torch.bool)).clone(),
    "clone of bfloat16": lambda n, on: on(of(n, dtype=torch.bfloat16)).clone(),
    "clone of complex": lambda n, on: on(of(n, dtype=torch.complex64)).clone(),
    "clone of float64": lambda n, on: on(of(n, dtype=torch.float64)).clone(),
    "clone of nothing": lambda n, on: on(of(0, n)).clone(),
    "clone of a transposed tensor": lambda n, on: on(of(n, 3)).t().clone(),
    "to the device in channels last": lambda n, on: on(of(n, 2, 3, 4).to(memory_format=LAST)),
    "to the device, transposed": lambda n, on: on(of(n, 3).t()),
    "clone in channels last": lambda n, on: on(of(n, 2, 3, 4).to(memory_format=LAST)).clone(),
    "contiguous": lambda n, on: on(of(n, 3)).clone(memory_format=torch.contiguous_format),
    "to, as a copy": lambda n, on: on(of(n, 3)).to(torch.float32, copy=True),
    "deepcopy": lambda n, on: copy.deepcopy(on(of(n, 3))),
    "copy_": lambda n, on: written(on(of(n, 3)), on(of(n, 3) + 1)),
    "copy_ of transposed ones": lambda n, on: written(on(of(n, 3)).t(), on(of(n, 3) + 1).t()),
    "copy_ of other views": lambda n, on: written(on(of(n, 3)).view(-1), on(of(n, 3)).view(-1)),
    "copy_ from the CPU": lambda n, on: written(on(of(n, 3)), of(n, 3) + 1),
    "copy_ of another dtype": lambda n, on: written(on(of(n)), of(n, dtype=torch.int64)),
    "copy_ to the CPU": lambda n, on: written(of(n, 3), on(of(n, 3) + 1)),
    "copy_ of a list": lambda n, on: all_written(
        [on(of(n)), on(of(2, n))], [on(of(n) + 1), on(of(2, n) + 1)]
    ),
    "a module's state": lambda n, on: loaded(on(torch.nn.Linear(n, 3)), n),
    "a view to the CPU": lambda n, on: on(of(n, 3))[1:].cpu(),
    "every other row": lambda n, on: on(of(n, 3))[::2].cpu(),
    "a column": lambda n, on: on(of(n, 3))[:, 1].cpu(),
    "a transposed view": lambda n, on: on(of(n, 3)).t().cpu(),
    "an expanded view": lambda n, on: on(of(n, 1)).expand(n, 4).cpu(),
    "overlapping windows": lambda n, on: on(of(n + 3)).unfold(0, 3, 2).cpu(),
    "an empty view": lambda n, on: on(of(n))[n:].cpu(),
    "a view of float64": lambda n, on: on(of(n, 3, dtype=torch.float64))[1:].tolist(),
    "a view of bfloat16": lambda n, on: on(of(n, 3, dtype=torch.bfloat16))[1:].tolist(),
    "an element": lambda n, on: on(of(n, 3))[n - 1, 2].item(),
    "a row": lambda n, on: on(of(n, 3))[n - 1].tolist(),
    "a row of a copy": lambda n, on: on(of(n, 3)).clone()[n - 1].numpy(force=True).tolist(),
    "arange": lambda n, on: on(torch.arange(n)),
    "arange there": lambda n, on: torch.arange(2, n, device=on(torch.ones(1)).device),
    "arange of bytes": lambda n, on: torch.arange(
        n, 0, -2, dtype=torch.uint8, device=on(torch.ones(1)).device
    ),
}


def to(device: str) -> Callable[[Any], Any]:
    return lambda x: x.to(device)


def compared(name: str, n: int) -> None:
    torch.manual_seed(0)
    actual = CALLS[name](n, to("jax"))
    torch.manual_seed(0)
    expected = CALLS[name](n, to("cpu"))
    if isinstance(expected, Tensor):
        assert isinstance(actual, Tensor)
        if expected.numel() and actual.is_jax:  # type: ignore[attr-defined]  # made with the device's name
            assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, check_device=False)


@pytest.mark.parametrize("mode", ["immediate", "deferred"])
@pytest.mark.parametrize("name", CALLS)
def test_no_program_for_each_shape(name: str, mode: str) -> None:
    jaxtorch.config.update(execution=mode)
    try:
        compared(name, 5)
        before = [record.name for record in stats.compiled]
        for n in (6, 7, 9):
            if mode == "deferred" and name.startswith("arange "):
                continue  # a window's program makes it, so that nothing is transferred at each step
            compared(name, n)
        torch.jax.synchronize()
        assert [record.name for record in stats.compiled] == before
    finally:
        jaxtorch.config.update(execution="immediate")


@pytest.mark.parametrize("name", CALLS)
def test_a_program_gives_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_MOST", 0)
    monkeypatch.setattr(filling, "_BUDGET", 0)
    for _ in range(2):
        compared(name, 11)


def test_the_program_takes_over() -> None:
    x = torch.arange(13.0, device="jax")
    before = len(stats.compiled)
    for i in range(copies._MOST + 5):
        y = x.clone()
        x.add_(1)
        assert y[0].item() == i, "the copy saw a later write"
    assert [r.name for r in stats.compiled[before:]].count("clone.default") == 1


def test_a_large_target_is_written_in_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MOST_WRITTEN", 4 * 18)
    sizes = (18, 19)
    pairs = [(torch.zeros(n, device="jax"), torch.ones(n).to("jax")) for n in sizes]
    before = len(stats.compiled)
    for target, source in pairs:
        assert target.copy_(source).tolist() == [1.0] * len(source)
        assert source.clone().tolist() == [1.0] * len(source)
    assert [r.name for r in stats.compiled[before:]] == ["copy_.default"], "for the larger one"


def test_neither_side_sees_later_writes() -> None:
    x = torch.arange(14.0, device="jax")
    y = x.clone()
    z = torch.zeros(14, device="jax").copy_(x)
    alias = z.view(2, 7)
    x.zero_()
    y.add_(1)
    assert z.tolist() == list(range(14))
    assert alias[1].tolist() == list(range(7, 14))
    assert y.tolist() == list(range(1, 15))


def test_a_copy_in_a_trace_is_a_part_of_it() -> None:
    x = torch.arange(15.0, device="jax")

    @jaxtorch.jit
    def twice(a: Tensor) -> Tensor:
        return a.clone() + x.clone()

    for i in range(3):
        assert twice(torch.full((15,), float(i), device="jax"))[1].item() == i + 1


def test_a_profile_compiles_nothing_either(tmp_path: Path) -> None:
    x = torch.arange(16.0, device="jax")
    before = len(stats.compiled)
    with jax.profiler.trace(str(tmp_path)), watching.watching(lambda record: None):
        assert x.clone().tolist() == list(range(16))
    assert len(stats.compiled) == before
    (trace,) = tmp_path.rglob("*.trace.json.gz")
    assert b"jaxtorch: copy" in gzip.decompress(trace.read_bytes())


def test_a_profile_has_the_time_of_large_copies() -> None:
    launched: list[str] = []
    x = torch.ones(1000, 1001).to("jax")
    with watching.watching(lambda record: launched.append(record.name)):
        x.clone()
    assert launched == ["clone.default"]


def test_a_copy_of_nan_is_an_error_where_jax_checks_for_it() -> None:
    x = torch.full((17,), float("nan"), device="jax")
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        x.clone()
    assert x.clone().isnan().all()


def moves(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """A transposition, or a reshape."""
    size = int(np.prod(shape))
    shapes = st.sampled_from([(size,), (2, size // 2), (size // 3, 3), (1, size), shape])
    orders = st.permutations(range(len(shape))).map(tuple)
    return st.tuples(st.just("reshape"), shapes) | st.tuples(st.just("transpose"), orders)


@given(st.data())
def test_what_counts_as_a_copy(data: st.DataObject) -> None:
    start = data.draw(st.sampled_from([(2, 3), (6,), (1, 6), (2, 3, 2), (3, 2, 1, 2)]))
    steps: list[Any] = []
    shape = start
    for _ in range(data.draw(st.integers(0, 4))):
        kind, argument = data.draw(moves(shape))
        steps.append((kind, argument))
        shape = argument if kind == "reshape" else tuple(shape[d] for d in argument)

    def moving(other: jax.Array, x: jax.Array) -> list[jax.Array]:
        for kind, argument in steps:
            x = getattr(x, kind)(argument)
        return [x]

    x = jnp.arange(int(np.prod(start))).reshape(start)
    found = copies_of(jax.make_jaxpr(moving)(x + 1, x))
    (result,) = moving(x, x)
    if found is not None:
        (moved,) = found.run(x + 1, x)
        assert moved.shape == result.shape
        assert moved.tolist() == result.tolist()
        assert moved.unsafe_buffer_pointer() != x.unsafe_buffer_pointer()
    elif not steps:
        pytest.fail("nothing was moved")


@pytest.mark.parametrize(
    "function",
    [lambda x: x + 0, lambda x: x.astype(jnp.float32), lambda x: x[:2], lambda x: (x, 1.0)],
)
def test_what_does_not(function: Callable[[jax.Array], object]) -> None:
    assert copies_of(jax.make_jaxpr(function)(jnp.arange(3))) is None


def test_all_modes_of_deferred_execution() -> None:
    for mode in ("calls", "steps", "compiled"):
        with modes.deferred(mode):
            for name in CALLS:
                compared(name, 12)


def test_nothing_beyond_the_buffer_is_read() -> None:
    x = torch.arange(6.0).to("jax")
    x.set_(x.untyped_storage(), 2, (2, 2), (1, 1))
    assert x.cpu().tolist() == [[2.0, 3.0], [3.0, 4.0]]
    with pytest.raises(RuntimeError, match="beyond"):
        read._viewed(np.arange(4.0), x)
