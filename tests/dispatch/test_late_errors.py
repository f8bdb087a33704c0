"""An error that XLA reports late belongs to its own result: what is asked later goes on, and nothing counts as held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch

import jaxtorch
from jaxtorch.insight.memory import live_arrays
from jaxtorch.programs import rng
from jaxtorch.programs.errors import explain_call
from jaxtorch.storage.buffer import buffer_of

HUGE = 1 << 40  # numbers: more than the memory of any test machine


def _drawn(seed: int, count: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.rand(3, device="jax").cpu() for _ in range(count)]


@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(lambda: torch.randn(HUGE, device="jax"), id="randn"),
        pytest.param(lambda: torch.rand(HUGE, device="jax"), id="rand"),
        pytest.param(lambda: torch.randint(9, (HUGE,), device="jax"), id="randint"),
        pytest.param(lambda: torch.ones(1, device="jax").expand(HUGE).bernoulli(), id="bernoulli"),
    ],
)
def test_random_numbers_go_on_after_one_call_had_no_memory(draw: Callable[[], Any]) -> None:
    before = torch.jax.memory_allocated()
    first, *rest = _drawn(11, 5)
    torch.manual_seed(11)
    assert torch.equal(torch.rand(3, device="jax").cpu(), first)
    with pytest.raises(torch.OutOfMemoryError, match="of device memory in `"):
        draw().view(-1)[:1].cpu()
    after = [torch.rand(3, device="jax").cpu() for _ in range(3)]
    # The call that failed may have taken its key, or not: where it failed at once.
    assert any(torch.equal(after[0], r) for r in rest[:2])
    assert torch.jax.memory_allocated() - before < 1 << 20


def test_what_is_drawn_before_anybody_looked_is_right() -> None:
    expected = _drawn(5, 3)
    torch.manual_seed(5)
    huge = torch.randn(HUGE, device="jax")
    second = torch.rand(3, device="jax")
    third = torch.rand(3, device="jax")
    assert torch.equal(second.cpu(), expected[1])
    assert torch.equal(third.cpu(), expected[2])
    with pytest.raises(torch.OutOfMemoryError, match=r"randn.*test_late_errors\.py"):
        huge.cpu()


def test_the_state_can_be_read_and_set_after_a_failure() -> None:
    torch.manual_seed(3)
    huge = torch.randn(HUGE, device="jax")
    state = torch.jax.get_rng_state()
    one = torch.rand(4, device="jax").cpu()
    torch.jax.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="jax").cpu(), one)
    del huge


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_a_captured_program_that_fails_takes_no_key_with_it(capture: Any) -> None:
    @capture
    def noise(x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn(HUGE, device="jax")

    torch.manual_seed(2)
    x = torch.ones(1, device="jax")
    with pytest.raises((RuntimeError, jax.errors.JaxRuntimeError)):
        noise(x).cpu()
    found = torch.rand(3, device="jax").cpu()
    assert ((found >= 0) & (found < 1)).all()
    assert torch.equal(x.cpu(), torch.ones(1))


def test_memory_does_not_count_what_failed() -> None:
    before, peak = torch.jax.memory_allocated(), torch.jax.max_memory_allocated()
    huge = torch.randn(HUGE, device="jax")
    with pytest.raises(torch.OutOfMemoryError):
        huge.cpu()
    assert torch.jax.memory_allocated() - before < 1 << 20
    assert torch.jax.max_memory_allocated() - peak < 1 << 20
    assert all(a.nbytes < HUGE for a in live_arrays())
    del huge
    assert torch.jax.max_memory_allocated() - peak < 1 << 20


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda x: x[:3].cpu(), id="a view"),
        pytest.param(lambda x: (x[:3] + x[:3]).cpu(), id="hot path"),
        pytest.param(lambda x: x.add_(1)[:2].cpu(), id="in place"),
        pytest.param(lambda x: torch.cat([x[:2], x[4:6]]).cpu(), id="a list"),
        pytest.param(lambda x: torch.ones(3, device="jax").add_(x[:3]).cpu(), id="into another"),
        pytest.param(lambda x: x[0].item(), id="a number"),
        pytest.param(lambda x: x[:3].nonzero(), id="a size"),
    ],
)
def test_the_next_use_is_an_error_that_names_an_operator_and_a_line(
    use: Callable[[Any], Any],
) -> None:
    y = torch.ones(3, device="jax")
    x = torch.randn(HUGE, device="jax")
    with pytest.raises(RuntimeError):  # waits, so that the failure is known
        x.cpu()
    with pytest.raises(RuntimeError, match=r"in `\w+.*test_late_errors\.py, line \d+"):
        use(x)
    assert torch.equal((y + y).cpu(), torch.full((3,), 2.0))


def test_an_error_that_comes_at_once_names_what_failed_and_not_what_asked() -> None:
    x = torch.randn(HUGE, device="jax")
    error = jax.errors.JaxRuntimeError("INTERNAL: an operand failed")
    with pytest.raises(RuntimeError):
        x.cpu()
    found = explain_call(
        error, "add.Tensor", [buffer_of(torch.ones(2, device="jax")), buffer_of(x)]
    )
    assert isinstance(found, torch.OutOfMemoryError)
    assert "in `randn" in str(found)
    assert "in `add.Tensor`" in str(explain_call(error, "add.Tensor", []))


def test_a_key_of_a_captured_program_is_good_when_it_is_ready() -> None:
    @jaxtorch.pure
    def noise(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3, device="jax")

    source = rng.default_key()
    for _ in range(3):
        noise(torch.ones(3, device="jax")).cpu()
    torch.rand(3, device="jax")
    assert source.array is source._good


def _big(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1)[0].expand(HUGE).clone()


def _with_jax(x: torch.Tensor) -> torch.Tensor:
    return jaxtorch.call_jax(lambda a: jax.numpy.broadcast_to(a[0], HUGE) + 1, x)


# What has no memory, and how the message names it.
DOORS: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "an operator": (_big, "clone"),
    "pure": (lambda x: jaxtorch.pure(_big)(x.detach()), "_big"),
    "pure, with a graph": (lambda x: jaxtorch.pure(_big)(x), "_big"),
    "jit": (lambda x: jaxtorch.jit(_big)(x.detach()), "_big"),
    "call_jax": (_with_jax, "<lambda>"),
    "torch.compile": (lambda x: torch.compile(_big, backend="jax")(x.detach()), "compiled"),
    "scan": (lambda x: jaxtorch.scan(lambda c, a: (c, _big(a)), x, x), "scan"),
}


@pytest.mark.parametrize("name", DOORS)
def test_every_door_says_that_memory_ran_out(name: str) -> None:
    call, what = DOORS[name]
    x = torch.ones(2, device="jax", requires_grad=True)
    with pytest.raises(
        torch.OutOfMemoryError, match=rf"in `{what}.*` \(called in .*, line \d+\)"
    ) as raised:
        torch.jax.synchronize() if (result := call(x)) is None else result.view(-1)[:1].cpu()
    assert "aten::" not in str(raised.value)
    assert x.sum().item() == 2
    live_arrays()  # while the error refers to what the call had prepared for its results
