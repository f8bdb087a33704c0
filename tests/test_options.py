"""jaxtorch.config: scopes, threads, generators, mistakes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

import jaxtorch


def test_a_scope_holds_and_ends() -> None:
    assert jaxtorch.config.fallback == "warn"
    with jaxtorch.config(fallback="error", matmul_precision="high"):
        assert jaxtorch.config.fallback == "error"
        with jaxtorch.config(fallback="silent"):
            assert jaxtorch.config.fallback == "silent"
            assert jaxtorch.config.matmul_precision == "high"
        assert jaxtorch.config.fallback == "error"
    assert jaxtorch.config.fallback == "warn"


def test_a_scope_ends_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), jaxtorch.config(fallback="error"):
        raise ZeroDivisionError
    assert jaxtorch.config.fallback == "warn"


def test_other_threads_keep_the_base() -> None:
    seen = []
    with jaxtorch.config(fallback="error"):
        thread = threading.Thread(target=lambda: seen.append(jaxtorch.config.fallback))
        thread.start()
        thread.join()
    assert seen == ["warn"]


def test_a_backward_pass_has_the_scope_of_its_caller() -> None:
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            seen.append(jaxtorch.config.fallback)
            return grad * 2

    x = torch.ones(2, device="jax", requires_grad=True)
    with jaxtorch.config(fallback="silent"):
        Look.apply(x).sum().backward()
    assert seen == ["silent"]


def test_generators_that_end_out_of_order() -> None:
    def scoped(value: str) -> Iterator[str]:
        with jaxtorch.config(fallback=value):
            yield jaxtorch.config.fallback

    first, second = scoped("error"), scoped("silent")
    next(first)
    next(second)
    first.close()
    second.close()
    assert jaxtorch.config.fallback == "warn"


def test_a_decorated_generator_has_its_scope_only_while_it_runs() -> None:
    @jaxtorch.config(fallback="error")
    def scoped() -> Iterator[str]:
        yield jaxtorch.config.fallback
        yield jaxtorch.config.fallback

    generator = scoped()
    assert next(generator) == "error"
    assert jaxtorch.config.fallback == "warn"
    assert next(generator) == "error"


def test_update_changes_the_base_for_every_thread() -> None:
    seen = []
    try:
        jaxtorch.config.update(fallback="silent")
        thread = threading.Thread(target=lambda: seen.append(jaxtorch.config.fallback))
        thread.start()
        thread.join()
    finally:
        jaxtorch.config.update(fallback="warn")
    assert seen == ["silent"]


def test_mistakes_name_the_nearest_word() -> None:
    with pytest.raises(AttributeError, match="Did you mean `fallback`"):
        jaxtorch.config(fallbck="error")
    with pytest.raises(AttributeError, match="matmul_precision"):
        _ = jaxtorch.config.matmul_prec
    with pytest.raises(AttributeError, match=r"`jaxtorch.config.update\(execution=...\)`"):
        jaxtorch.config(execution="deferred")
    with pytest.raises(ValueError, match="'warn', 'silent', 'error'"):
        jaxtorch.config(fallback="maybe")
    assert jaxtorch.config.fallback == "warn"


def test_precision_is_part_of_the_program() -> None:
    x = torch.ones(4, 4, device="jax")
    x @ x
    before = jaxtorch.compile_count()
    with jaxtorch.config(matmul_precision="default"):
        x @ x
    assert jaxtorch.compile_count() == before + 1
    x @ x
    assert jaxtorch.compile_count() == before + 1


def test_the_users_jax_is_left_alone() -> None:
    import jax
    import jax.numpy as jnp

    x = torch.ones(3, dtype=torch.float64, device="jax")
    assert (x + 1).dtype == torch.float64
    assert not jax.config.jax_enable_x64
    assert jnp.arange(3).dtype == jnp.int32
    assert jnp.asarray(1.5).dtype == jnp.float32
