"""Random numbers in captured code: each run draws, seeds and restores as the code does when it runs eagerly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jaxtorch
from jaxtorch.capture.errors import CaptureError

WRAPPERS: dict[str, Callable[..., Any]] = {
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
    "compile": lambda f: torch.compile(f, backend="jax"),
}
DEVICE = torch.Generator("jax")
CPU = torch.Generator()


def _randn(generator: torch.Generator | None = None) -> torch.Tensor:
    return torch.randn(3, generator=generator, device="jax")


def _seeded(x: torch.Tensor) -> list[torch.Tensor]:
    before = _randn()
    torch.manual_seed(7)
    return [before, x + _randn(), x + _randn()]


def _seeded_first(x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(7)
    return [x + _randn()]


def _forked(x: torch.Tensor) -> list[torch.Tensor]:
    with torch.random.fork_rng(device_type="jax"):
        torch.manual_seed(5)
        inside = x + _randn()
    return [inside, _randn()]


def _restored(x: torch.Tensor) -> list[torch.Tensor]:
    state = torch.jax.get_rng_state()
    first = x + _randn()
    torch.jax.set_rng_state(state)
    return [first, _randn()]


def _of_a_generator(x: torch.Tensor) -> list[torch.Tensor]:
    return [x + _randn(DEVICE), _randn(DEVICE), _randn()]


def _generator_restored(x: torch.Tensor) -> list[torch.Tensor]:
    state = DEVICE.get_state()
    first = x + _randn(DEVICE)
    DEVICE.set_state(state)
    return [first, _randn(DEVICE), _randn(DEVICE)]


def _generator_seeded(x: torch.Tensor) -> list[torch.Tensor]:
    first = x + _randn(DEVICE)
    DEVICE.manual_seed(4)
    return [first, _randn(DEVICE)]


def _generator_made(x: torch.Tensor) -> list[torch.Tensor]:
    generator = torch.Generator("jax").manual_seed(4)
    return [x + _randn(generator), _randn(generator), _randn()]


def _of_the_cpus(x: torch.Tensor) -> list[torch.Tensor]:
    return [x + _randn(CPU), torch.rand(3, generator=CPU, device="jax"), _randn()]


def _seeded_in_a_loop(x: torch.Tensor) -> list[torch.Tensor]:
    def body(h: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(3)
        h = h + _randn()
        return h, h

    return list(jaxtorch.scan(body, x, x[:, None]))


CODE = {
    code.__name__.strip("_"): code
    for code in (
        _seeded,
        _seeded_first,
        _forked,
        _restored,
        _of_a_generator,
        _generator_restored,
        _generator_seeded,
        _generator_made,
        _of_the_cpus,
        _seeded_in_a_loop,
    )
}


def _runs(code: Callable[..., Any]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    DEVICE.manual_seed(1)
    CPU.manual_seed(2)
    x = torch.zeros(3, device="jax")
    found = [t for _ in range(3) for t in code(x)]
    return [t.cpu() for t in [*found, _randn(), _randn(DEVICE), _randn(CPU)]]


@pytest.mark.parametrize("name", CODE)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_each_run_is_as_an_eager_one(name: str, wrapper: str) -> None:
    if (name, wrapper) == ("seeded_in_a_loop", "compile"):
        pytest.skip("Dynamo does not see through jaxtorch.scan")
    torch._dynamo.reset()
    expected, found = _runs(CODE[name]), _runs(WRAPPERS[wrapper](CODE[name]))
    assert [torch.equal(a, b) for a, b in zip(found, expected, strict=True)] == [True] * len(found)


@pytest.mark.parametrize("wrapper", ["pure", "jit"])
@pytest.mark.parametrize("device", ["jax", "cpu"])
def test_a_generator_may_be_an_argument(wrapper: str, device: str) -> None:
    def code(x: torch.Tensor, generator: torch.Generator) -> list[torch.Tensor]:
        return [x + _randn(generator), _randn(generator)]

    def runs(code: Callable[..., Any]) -> list[torch.Tensor]:
        one, two = (torch.Generator(device).manual_seed(i) for i in range(2))
        x = torch.zeros(3, device="jax")
        return [t.cpu() for g in (one, two, one) for t in code(x, g)]

    assert all(map(torch.equal, runs(WRAPPERS[wrapper](code)), runs(code)))


@pytest.mark.parametrize("wrapper", ["pure", "jit"])
@pytest.mark.parametrize("device", ["jax", "cpu"])
def test_another_generator_under_the_name(wrapper: str, device: str) -> None:
    generator = torch.Generator(device).manual_seed(1)

    def code(x: torch.Tensor) -> torch.Tensor:
        return x + _randn(generator)

    captured = WRAPPERS[wrapper](code)
    x = torch.zeros(3, device="jax")
    captured(x)
    generator = torch.Generator(device).manual_seed(2)
    found = captured(x)
    generator.manual_seed(2)
    assert torch.equal(found.cpu(), code(x).cpu())


def _seeds_from_the_system(x: torch.Tensor) -> torch.Tensor:
    torch.seed()
    return x + _randn()


def _generator_seeds_from_the_system(x: torch.Tensor) -> torch.Tensor:
    DEVICE.seed()
    return x + _randn(DEVICE)


def _asks_for_the_state(x: torch.Tensor) -> torch.Tensor:
    return x + torch.jax.get_rng_state().cpu().float().mean()


def _draws_on_the_cpu(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn(3, generator=CPU).to("jax")


def _seeds_a_cpu_generator(x: torch.Tensor) -> torch.Tensor:
    CPU.manual_seed(3)
    return x + _randn(CPU)


def _draws_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    def body(h: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return h + _randn(DEVICE), h

    return jaxtorch.scan(body, x, x[:, None])[0]


REFUSED = {
    "operating system": (_seeds_from_the_system, _generator_seeds_from_the_system),
    "no value yet": (_asks_for_the_state,),
    "a CPU generator": (_draws_on_the_cpu, _seeds_a_cpu_generator),
    "carries only the device's own key": (_draws_in_a_loop,),
}


@pytest.mark.parametrize(
    ("code", "words"), [(code, words) for words, codes in REFUSED.items() for code in codes]
)
@pytest.mark.parametrize("wrapper", ["pure", "jit"])
def test_what_would_be_the_same_at_each_run_is_refused(
    code: Callable[..., Any], words: str, wrapper: str
) -> None:
    before = DEVICE.get_state(), CPU.get_state()
    with pytest.raises(CaptureError, match=words):
        WRAPPERS[wrapper](code)(torch.zeros(3, device="jax"))
    assert torch.equal(DEVICE.get_state(), before[0])
    assert torch.equal(CPU.get_state(), before[1])


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("wrapper", ["pure", "jit"])
def test_a_constant_is_a_new_tensor_at_each_call(wrapper: str, device: str) -> None:
    code = WRAPPERS[wrapper](lambda x: (torch.zeros(3, device=device), x + 1))
    for _ in range(3):
        constant, _ = code(torch.ones(3, device="jax"))
        assert constant.tolist() == [0, 0, 0]
        constant.add_(5)


@pytest.mark.parametrize("wrapper", ["pure", "jit"])
@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(3),
        lambda: torch.randint(0, 9, (3,)),
        lambda: torch.randperm(3),
        lambda: torch.zeros(3).uniform_(),
        lambda: torch.normal(0.0, 1.0, (3,)),
        lambda: torch.nn.functional.dropout(torch.ones(3)),
        lambda: torch.manual_seed(3) and torch.rand(3),
    ],
)
def test_a_draw_on_the_cpu_is_refused_and_takes_no_number(
    draw: Callable[[], torch.Tensor], wrapper: str
) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    captured = WRAPPERS[wrapper](lambda x: x + draw().to("jax"))
    with pytest.raises(CaptureError, match=r"draws random numbers on the CPU \(torch\.\w+\)"):
        captured(torch.zeros(3, device="jax"))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("wrapper", ["pure", "jit"])
def test_a_draw_of_a_library_is_said(wrapper: str) -> None:
    def code(x: torch.Tensor) -> torch.Tensor:
        dropped = torch.nn.init.uniform_(torch.empty(())) < 0.0  # as LayerDrop at rate 0
        return x if bool(dropped) else x * 2

    with pytest.warns(UserWarning, match="draws random numbers on the CPU"):
        result = WRAPPERS[wrapper](code)(torch.ones(3, device="jax"))
    assert torch.equal(result, torch.full_like(result, 2.0))
