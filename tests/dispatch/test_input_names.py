"""The inputs of eager programs have the names of the operator's arguments, in every form of HLO and StableHLO."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F

import jaxtorch
from jaxtorch.insight.programs import ProgramInfo, programs

from ..capture.test_input_names import names_of

# Of sizes that no other test has: a program that another test compiled would not be compiled again.
X = torch.ones(7, 11, device="jax")
Y = torch.ones(7, 11, device="jax")
W = torch.ones(5, 11, device="jax")
VECTOR = torch.arange(7 * 11 * 13.0, device="jax")


def product(u: jax.Array, other: dict[str, jax.Array]) -> jax.Array:
    return jnp.sin(u) * other["v"]


# What runs, and the names of the inputs of each program that it compiles.
CALLS: dict[str, tuple[Callable[[], object], dict[str, list[str]]]] = {
    "an operator": (lambda: X.sinh(), {"sinh.default": ["self"]}),
    "a number": (lambda: torch.add(X, Y, alpha=2.5), {"add.Tensor": ["self", "other", "alpha"]}),
    "numbers of one kind": (
        lambda: F.hardtanh(X, -2.5, 3.5),
        {"hardtanh.default": ["self", "floats"]},
    ),
    "numbers of two kinds": (
        lambda: torch.addmm(Y[:, :5].contiguous(), X, W.T, beta=2, alpha=0.5),
        {"addmm.default": ["self", "mat1", "mat2", "alpha", "beta"]},
    ),
    "keyword": (
        lambda: F.layer_norm(X, (11,), weight=X[0].clone(), eps=1e-3),
        {"native_layer_norm.default": ["input", "weight", "eps"]},
    ),
    "a list": (lambda: torch.cat([X, Y], 1), {"cat.default": ["tensors.0", "tensors.1"]}),
    "in place": (lambda: torch.ones(7, 17, device="jax").cosh_(), {"cosh_.default": ["self"]}),
    "out": (
        lambda: torch.atan2(X, Y, out=torch.empty(7, 11, device="jax")),
        {"atan2.out": ["self", "other"]},
    ),
    "a view": (lambda: VECTOR[3:78].asinh(), {"asinh.default": ["self", "view_starts"]}),
    "random numbers": (
        lambda: torch.empty(7, 19, device="jax").normal_(1.5, 0.5),
        {"normal_.default": ["random_bits.0", "floats"]},
    ),
    "random numbers from the key": (
        lambda: torch.multinomial(X, 3),
        {"multinomial.default": ["random_bits.0", "self"]},
    ),
    "foreach": (
        lambda: torch._foreach_mul([X, Y], 1.5),
        {"_foreach_mul.Scalar": ["self.0", "self.1", "scalar"]},
    ),
    "a composite": (
        lambda: F.scaled_dot_product_attention(X[None], Y[None], X[None]),
        {"scaled_dot_product_attention": ["query", "key", "value"]},
    ),
    "a JAX function": (
        lambda: jaxtorch.call_jax(product, X, {"v": Y}),
        {"product": ["u", "other.v"]},
    ),
}


def new_programs(run: Callable[[], object]) -> dict[str, ProgramInfo]:
    """The programs that a call compiled, by their names."""
    first = programs()[-1].id if programs() else 0
    run()
    return {p.name: p for p in programs() if p.id > first}


@pytest.mark.parametrize("case", CALLS)
def test_the_names_are_those_of_the_arguments(case: str) -> None:
    run, expected = CALLS[case]
    found = new_programs(run)
    names = {name: names_of(found[name]) for name in expected}
    assert names == expected
    for info in found.values():
        assert not any("operands" in name for name in names_of(info))
