"""torch.distributions in captured code, which cannot check parameters and samples: that needs values."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributions as D

import jaxtorch
from jaxtorch.capture.errors import CaptureError

Tensor = torch.Tensor
Density = Callable[[Tensor], Tensor]
WAYS: dict[str, Callable[[Density], Density]] = {
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
    "compile": lambda f: torch.compile(f, backend="jax"),
}


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    """torch.compile turns the checks off for the whole process."""
    D.Distribution.set_default_validate_args(True)
    yield
    assert "_validate_args" in vars(D.Distribution)
    D.Distribution.set_default_validate_args(True)


class OfTheUser(D.Normal):
    """With a constructor of its own."""

    def __init__(self, mean: Tensor):
        super().__init__(mean, mean + 1)


COUNTS = torch.arange(1.0, 4.0)
CASES: dict[str, Density] = {
    "Normal": lambda x: D.Normal(x, x).log_prob(x),
    "Categorical": lambda x: D.Categorical(logits=x).log_prob(x.argmax(-1)),
    "Categorical of probabilities": lambda x: D.Categorical(x).entropy(),
    "Bernoulli": lambda x: D.Bernoulli(x).log_prob((x > 0.5).float()),
    "Gamma": lambda x: D.Gamma(x, x).log_prob(x),
    "Beta": lambda x: D.Beta(x, x).log_prob(x),
    "Dirichlet": lambda x: D.Dirichlet(x).log_prob(x / x.sum()),
    "MultivariateNormal": lambda x: D.MultivariateNormal(x, torch.diag(x)).log_prob(x * 2),
    "Independent": lambda x: D.Independent(D.Normal(x, x), 1).log_prob(x),
    "mixture": lambda x: D.MixtureSameFamily(D.Categorical(x), D.Normal(x, x)).log_prob(x.sum()),
    "transformed": lambda x: D.LogNormal(x, x).log_prob(x),
    "Geometric": lambda x: D.Geometric(x).log_prob(COUNTS.to(x.device)),
    "VonMises": lambda x: D.VonMises(x, x).log_prob(x),
    "expanded": lambda x: D.Normal(x, x).expand((2, 3)).log_prob(x),
    "cdf": lambda x: D.Cauchy(x, x).cdf(x),
    "divergence": lambda x: D.kl_divergence(D.Normal(x, x), D.Normal(x * 2, x)),
    "user's": lambda x: OfTheUser(x).log_prob(x),
}
X = torch.tensor([0.2, 0.5, 0.9])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_densities(name: str, way: str) -> None:
    captured = WAYS[way](CASES[name])
    result = captured(X.to("jax"))
    torch.testing.assert_close(result.cpu(), CASES[name](X), rtol=1e-4, atol=1e-5)
    before = jaxtorch.compile_count()
    captured(X.to("jax"))
    assert jaxtorch.compile_count() == before


@pytest.mark.parametrize("way", WAYS)
def test_one_from_outside(way: str) -> None:
    normal = D.Normal(X.to("jax"), 1.0)
    expected = D.Normal(X, 1.0).log_prob(X)
    torch.testing.assert_close(WAYS[way](normal.log_prob)(X.to("jax")).cpu(), expected)
    with pytest.raises(ValueError, match="Expected value argument"):
        normal.log_prob(X.to("jax") * torch.nan)


@pytest.mark.parametrize("way", ["pure", "jit"])
def test_a_check_that_is_asked_for_says_how_to_do_without(way: str) -> None:
    captured = WAYS[way](lambda x: D.Normal(x, x, validate_args=True).log_prob(x))
    with pytest.raises(CaptureError, match="validate_args=False"):
        captured(X.to("jax"))
    with pytest.raises(ValueError, match="Expected parameter scale"):
        D.Normal(X, -X)


def test_other_threads_check() -> None:
    errors: list[Any] = []

    def outside() -> None:
        try:
            D.Normal(X, -X)
        except ValueError as error:
            errors.append(error)

    def code(x: Tensor) -> Tensor:
        thread = threading.Thread(target=outside)
        thread.start()
        thread.join()
        return D.Normal(x, x).log_prob(x)

    jaxtorch.pure(code)(X.to("jax"))
    assert len(errors) == 1
