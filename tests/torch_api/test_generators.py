"""`torch.Generator(device="jax")`: streams of their own, seeds, states; generators of the CPU stay what they are."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

Sampler = Callable[[torch.Generator | None], torch.Tensor]


def _zeros(*size: int) -> torch.Tensor:
    return torch.zeros(*(size or (8,)), device="jax")


SAMPLERS: dict[str, Sampler] = {
    "randn": lambda g: torch.randn(8, generator=g, device="jax"),
    "randn out": lambda g: torch.randn(8, generator=g, out=_zeros()),
    "rand": lambda g: torch.rand(2, 4, generator=g, device="jax", dtype=torch.bfloat16),
    "randn_like": lambda g: torch.randn_like(_zeros(), generator=g),
    "rand_like": lambda g: torch.rand_like(_zeros(), generator=g),
    "randint": lambda g: torch.randint(-9, 99, (8,), generator=g, device="jax"),
    "randint_like": lambda g: torch.randint_like(_zeros(), 99, generator=g),
    "randperm": lambda g: torch.randperm(16, generator=g, device="jax"),
    "normal": lambda g: torch.normal(1.0, 2.0, (8,), generator=g, device="jax"),
    "normal of tensors": lambda g: torch.normal(_zeros(), _zeros() + 2, generator=g),
    "bernoulli": lambda g: torch.bernoulli(_zeros(64) + 0.5, generator=g),
    "multinomial": lambda g: torch.multinomial(_zeros(50) + 1, 20, generator=g),
    "normal_": lambda g: _zeros().normal_(1, 2, generator=g),
    "uniform_": lambda g: _zeros().uniform_(-1, 2, generator=g),
    "random_": lambda g: _zeros().random_(generator=g),
    "random_ below": lambda g: _zeros().random_(1000, generator=g),
    "random_ between": lambda g: _zeros().random_(-1000, 1000, generator=g),
    "exponential_": lambda g: _zeros().exponential_(generator=g),
    "log_normal_": lambda g: _zeros().log_normal_(generator=g),
    "cauchy_": lambda g: _zeros().cauchy_(generator=g),
    "geometric_": lambda g: _zeros().geometric_(0.01, generator=g),
    "bernoulli_": lambda g: _zeros(64).bernoulli_(0.5, generator=g),
    "bernoulli_ by a tensor": lambda g: _zeros(64).bernoulli_(_zeros(64) + 0.5, generator=g),
    "a view": lambda g: _zeros(4, 4)[:, 1].normal_(generator=g),
    "init.normal_": lambda g: torch.nn.init.normal_(_zeros(), generator=g),
    "init.trunc_normal_": lambda g: torch.nn.init.trunc_normal_(_zeros(), generator=g),
    "init.kaiming_uniform_": lambda g: torch.nn.init.kaiming_uniform_(_zeros(3, 4), generator=g),
    "init.orthogonal_": lambda g: torch.nn.init.orthogonal_(_zeros(3, 3), generator=g),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_seeded_generator_is_the_device_seeded(name: str) -> None:
    draw = SAMPLERS[name]
    torch.manual_seed(5)
    expected = [draw(None).cpu(), draw(None).cpu()]
    untouched = torch.jax.get_rng_state()
    generator = torch.Generator(device="jax").manual_seed(5)
    found = [draw(generator).cpu(), draw(generator).cpu()]
    assert all(map(torch.equal, found, expected))
    assert not torch.equal(*found)
    assert torch.equal(torch.jax.get_rng_state(), untouched)


def _draw(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(4, generator=generator, device="jax").cpu()


def test_what_it_is() -> None:
    for device in ("jax", "jax:0", torch.device("jax")):
        generator = torch.Generator(device)
        assert isinstance(generator, torch.Generator)
        assert generator.device == torch.device("jax", 0)
    assert generator.initial_seed() == torch.Generator().initial_seed()
    assert "jax" in repr(generator)


def test_cpu_generators_are_torchs_own() -> None:
    assert type(torch.Generator()) is type(torch.Generator("cpu")) is torch._C.Generator
    assert torch.Generator is torch._C.Generator
    assert torch.Generator(device=None).device.type == "cpu"
    with pytest.raises(RuntimeError, match="device"):
        torch.Generator("nowhere")


def test_streams_are_independent() -> None:
    one, two = (torch.Generator("jax").manual_seed(1) for _ in range(2))
    first = _draw(one)
    _draw(one)
    assert torch.equal(_draw(two), first)
    torch.manual_seed(1)
    assert torch.equal(_draw(one.manual_seed(1)), first), "the device's seed is the device's alone"


@pytest.mark.parametrize("seed", [0, -1, 2**64 - 1, -(2**63)])
def test_seeds(seed: int) -> None:
    generator = torch.Generator("jax")
    assert generator.manual_seed(seed) is generator
    assert generator.initial_seed() == torch.Generator().manual_seed(seed).initial_seed()
    assert generator.seed() == generator.initial_seed()


@pytest.mark.parametrize("seed", ["x", 1.5, 2**65])
def test_what_is_no_seed(seed: object) -> None:
    with pytest.raises((RuntimeError, ValueError)) as theirs:
        torch.Generator().manual_seed(seed)  # type: ignore[arg-type]
    with pytest.raises(theirs.type, match=str(theirs.value)):
        torch.Generator("jax").manual_seed(seed)  # type: ignore[arg-type]


def test_states() -> None:
    generator = torch.Generator("jax").manual_seed(3)
    _draw(generator)
    state = generator.get_state()
    assert (state.dtype, state.device.type) == (torch.uint8, "cpu")
    others = [generator.clone_state(), copy.deepcopy(generator)]
    others += [pickle.loads(pickle.dumps(generator)), torch.Generator("jax").set_state(state)]
    expected = _draw(generator)
    for other in others:
        assert other.device.type == "jax"
        assert other.initial_seed() == 3
        assert torch.equal(_draw(other), expected)
    torch.jax.set_rng_state(state)
    assert torch.equal(torch.randn(4, device="jax").cpu(), expected)
    with pytest.raises(RuntimeError, match="state"):
        generator.set_state(torch.zeros(3))


def test_the_offset_counts_draws() -> None:
    generator = torch.Generator("jax").manual_seed(3)
    assert generator.get_offset() == 0
    rows = [_draw(generator) for _ in range(3)]
    assert generator.get_offset() == 3
    for offset in (1, 0, 2):
        assert torch.equal(_draw(generator.set_offset(offset)), rows[offset])
        assert generator.get_offset() == offset + 1
    assert generator.initial_seed() == 3
    for wrong in (-1, 1 << 63):
        with pytest.raises(RuntimeError, match="number of draws"):
            generator.set_offset(wrong)


@pytest.mark.parametrize("offset", [(1 << 32) - 2, (1 << 40) - 1])
def test_an_offset_has_64_bits(offset: int) -> None:
    generator = torch.Generator("jax").manual_seed(3)
    early = [_draw(generator) for _ in range(3)]
    generator.set_offset(offset)
    late = [_draw(generator) for _ in range(3)]
    assert generator.get_offset() == offset + 3
    assert len({tuple(row.tolist()) for row in early + late}) == 6


def test_a_shared_state() -> None:
    one = torch.Generator("jax").manual_seed(3)
    first, second = _draw(one), _draw(one)
    one.manual_seed(3)
    two = one.graphsafe_get_state()
    assert torch.equal(_draw(two), first)
    assert torch.equal(_draw(one), second)
    three = torch.Generator("jax").manual_seed(9)
    three.graphsafe_set_state(one.manual_seed(3))
    assert torch.equal(_draw(three), first)


def test_an_operator_of_the_cpu_draws_the_cpus_numbers() -> None:
    found = torch.randn(4, generator=torch.Generator("jax").manual_seed(3))
    assert torch.equal(found, torch.randn(4, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_a_loader_shuffles_by_either(device: str) -> None:
    def order() -> list[float]:
        generator = torch.Generator(device).manual_seed(1)
        data = torch.utils.data.TensorDataset(torch.arange(32.0))
        loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, generator=generator)
        return torch.cat([batch for (batch,) in loader]).tolist()

    assert order() == order() != sorted(order())


def test_it_may_be_the_first_use_of_the_device() -> None:
    program = (
        "import sys, torch; torch.Generator(); print('jax' in sys.modules);"
        "print(torch.randn(2, device='jax', generator=torch.Generator('jax').manual_seed(0)).shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.splitlines() == ["False", "torch.Size([2])"], done.stderr
