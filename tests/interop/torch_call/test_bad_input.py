"""What a torch function called from JAX must not do, and what callers get wrong: a clear error, nothing corrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxtorch import TorchCallError, torch2jax
from jaxtorch.interop.torch_call.calls import Traits, UserFunction
from jaxtorch.interop.torch_call.running import on_host

Tensor = torch.Tensor
X = np.arange(6, dtype=np.float32).reshape(2, 3)
BOTH = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])


@pytest.fixture
def x() -> jax.Array:
    return jnp.asarray(X)


def in_place(t: Tensor) -> Tensor:
    t[0].add_(1)
    return t * 2


def through_numpy(t: Tensor) -> Tensor:
    t.numpy()[0] += 1
    return t * 2


def through_out(t: Tensor) -> Tensor:
    torch.add(t[0], 1, out=t[0])
    return t * 2


def through_a_view(t: Tensor) -> Tensor:
    view = t.view(6)[:3].unflatten(0, (3, 1))
    view += 1
    return t * 2


@BOTH
@pytest.mark.parametrize("declared", [False, True], ids=["inferred", "declared"])
@pytest.mark.parametrize("f", [in_place, through_numpy, through_out, through_a_view])
def test_a_write_to_an_argument_is_to_a_copy(
    f: Callable[..., Any], declared: bool, transform: Any, x: jax.Array
) -> None:
    wanted = (X + np.array([[1.0], [0.0]], np.float32)) * 2
    wrapped = transform(torch2jax(f, x, output_shapes=x if declared else None))
    for _ in range(2):
        np.testing.assert_array_equal(wrapped(x), wanted)
        np.testing.assert_array_equal(x, X)


def test_the_gradient_of_a_function_that_writes_to_its_argument(x: jax.Array) -> None:
    for declared in (None, x):
        wrapped = torch2jax(in_place, output_shapes=declared)
        found = jax.jit(jax.grad(lambda x: (wrapped(x) ** 2).sum()))(x)  # noqa: B023  # called at once
        wanted = jax.grad(lambda x: ((x.at[0].add(1) * 2) ** 2).sum())(x)
        np.testing.assert_allclose(found, wanted)
        np.testing.assert_array_equal(x, X)


kept: list[Any] = []


def keeps_itself(t: Tensor) -> Tensor:
    kept.append(t)
    return t + 1


def keeps_a_view(t: Tensor) -> Tensor:
    kept.append(t[0])
    return t + 1


def keeps_a_graph(t: Tensor) -> Tensor:
    kept.append((torch.nn.Parameter(torch.ones(3)) * t).sum())
    return t + 1


@BOTH
@pytest.mark.parametrize("f", [keeps_itself, keeps_a_view, keeps_a_graph])
def test_an_argument_that_is_kept_is_an_error(
    f: Callable[..., Any], transform: Any, x: jax.Array
) -> None:
    with pytest.raises(
        RuntimeError, match=rf"{f.__name__} keeps its argument 0 .*keep argument.clone\(\)"
    ):
        jax.block_until_ready(transform(torch2jax(f, output_shapes=x))(x))
    kept.clear()


@BOTH
def test_a_cycle_that_the_call_leaves_behind_keeps_nothing(transform: Any, x: jax.Array) -> None:
    def f(t: Tensor) -> Tensor:
        cycle: list[Any] = [t]
        cycle.append(cycle)
        return t + 1

    result = transform(torch2jax(f, output_shapes=x))(x)
    np.testing.assert_array_equal(result, X + 1)


@BOTH
def test_a_copy_may_be_kept(transform: Any, x: jax.Array) -> None:
    def f(t: Tensor) -> Tensor:
        kept.append(t.clone())
        return t + 1

    jax.block_until_ready(transform(torch2jax(f, output_shapes=x))(x))
    np.testing.assert_array_equal(kept.pop(), X)


@BOTH
@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            jax.ShapeDtypeStruct((3, 2), jnp.float32),
            r"float32\[2, 3\] where torch.float32\[3, 2\] was declared",
        ),
        (
            jax.ShapeDtypeStruct((2, 3), jnp.int32),
            r"float32\[2, 3\] where torch.int32\[2, 3\] was declared",
        ),
        ((X, X), "returned 1 tensors, but 2 were declared"),
    ],
)
def test_a_result_other_than_declared(
    declared: Any, message: str, transform: Any, x: jax.Array
) -> None:
    with pytest.raises((TypeError, jax.errors.JaxRuntimeError), match=message):
        jax.block_until_ready(transform(torch2jax(lambda t: t + 1, output_shapes=declared))(x))


def test_a_result_that_is_no_tensor(x: jax.Array) -> None:
    with pytest.raises(TypeError, match=r"returns a float .*torch.as_tensor"):
        torch2jax(lambda t: 3.0)(x)
    with pytest.raises(TypeError, match="returned a str where a tensor was declared"):
        torch2jax(lambda t: "loss", output_shapes=x)(x)


def fails(t: Tensor) -> Tensor:
    wide = t.repeat(2, 1)
    return wide @ t


def test_an_error_in_torch_is_the_error_eagerly(x: jax.Array) -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        torch2jax(fails, output_shapes=x)(x)
    assert caught.traceback[-1].name == "fails"


def test_an_error_in_torch_is_told_with_its_line_under_jit(x: jax.Array) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.jit(torch2jax(fails, output_shapes=x))(x)
    words = str(caught.value)
    printed = words[words.index("TorchCallError") :]
    assert printed.splitlines()[0] == "TorchCallError: in fails, called from JAX:"
    assert f'{__file__}", line {fails.__code__.co_firstlineno + 2}, in fails' in printed
    assert "return wide @ t" in printed
    assert printed.count("  File ") == 1  # none of ours, of JAX's or of torch's calling it
    assert "mat1 and mat2 shapes cannot be multiplied" in printed
    assert issubclass(TorchCallError, RuntimeError)


def test_after_an_error_everything_goes_on(x: jax.Array) -> None:
    def f(t: Tensor) -> Tensor:
        if bool((t < 0).any()):
            raise ValueError("negative")
        return t.sqrt()

    wrapped = jax.jit(torch2jax(f, output_shapes=x))
    for _ in range(3):
        with pytest.raises(jax.errors.JaxRuntimeError, match="ValueError: negative"):
            jax.block_until_ready(wrapped(-x))
        np.testing.assert_allclose(wrapped(x), np.sqrt(X), rtol=1e-6)


def test_shapes_that_only_values_tell_are_asked_for_under_a_transform(x: jax.Array) -> None:
    with pytest.raises(TypeError, match=r"cannot infer the result shapes of .*output_shapes="):
        jax.jit(torch2jax(lambda t: t[: int(t.sum())]))(x)


def test_the_user_s_own_mistake_shows_without_ours_before_it(x: jax.Array) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        torch2jax(lambda t: t / (1 // 0))(x)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch2jax(3), "torch2jax takes a torch function or module, not int"),
        (
            lambda: torch2jax(torch.sin, vmap_method="fast"),
            "vmap_method must be 'auto' or 'sequential', not 'fast'",
        ),
        (
            lambda: torch2jax(torch.sin, X, output_shapes="2x3"),
            "has a str where a shape is expected",
        ),
        (
            lambda: torch2jax(torch.sin, X.astype(int), output_shapes=(2, 3)),
            r"shape \(2, 3\) without a dtype",
        ),
        (
            lambda: torch2jax(torch.nn.Linear(3, 2).to("jax")),
            r"uses a tensor on the jax device.*jax_view",
        ),
        (lambda: torch2jax(torch.sin)(jax.random.key(0)), r"pass jax.random.key_data"),
        (lambda: torch2jax(torch.sin, rng=True)(X), "rng=True|takes a JAX key|shape"),
        (
            lambda: torch2jax(torch.sin)(jax.ShapeDtypeStruct((2,), jnp.float32)),
            "an example for torch2jax",
        ),
    ],
)
def test_a_mistake_of_the_caller_is_one_sentence(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_an_argument_that_cannot_be_part_of_a_signature(x: jax.Array) -> None:
    class Options:
        __hash__ = None  # type: ignore[assignment]

    with pytest.raises(TypeError, match=r"neither an array nor hashable \(Options\)"):
        torch2jax(lambda t, options: t)(x, Options())


def test_calls_from_several_threads_do_not_meet(x: jax.Array) -> None:
    f = jax.jit(
        jax.value_and_grad(torch2jax(lambda t, n: (t.sin() * n).sum(), output_shapes=jnp.zeros(())))
    )
    wrong = []

    def work(n: int) -> None:
        for i in range(50):
            value, gradient = f(x + i, jnp.float32(n))
            if not np.allclose(gradient, np.cos(X + i) * n, atol=1e-5):
                wrong.append((n, i, value))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_effects_in_the_order_of_the_program() -> None:
    seen = []

    def note(t: Tensor) -> Tensor:
        seen.append(t.item())
        return t + 1

    f = torch2jax(note, output_shapes=jnp.float32(0), ordered=True)

    @jax.jit
    def program(x: jax.Array) -> jax.Array:
        for _ in range(3):
            f(x)  # nobody takes the result: an effect all the same
        return jax.lax.fori_loop(0, 3, lambda _, x: f(x), x * 10)

    np.testing.assert_array_equal(program(jnp.float32(1.0)), 13.0)
    assert seen == [1.0, 1.0, 1.0, 10.0, 11.0, 12.0]


def test_a_device_without_torch_kernels_goes_through_the_host(x: jax.Array) -> None:
    """As a program for a TPU does it, compiled for the CPU here."""
    aval = jax.ShapeDtypeStruct(x.shape, x.dtype)
    traits = Traits("fails")
    call = UserFunction(lambda t: [t.sin()], [aval], [aval], traits)
    with pytest.warns(UserWarning, match=r"fails runs on the host.*jax_view"):
        (found,) = jax.jit(lambda x: on_host(call, [x]))(x)
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-6)
    broken = UserFunction(lambda t: [fails(t)], [aval], [aval], traits)
    with (
        pytest.warns(UserWarning, match="runs on the host"),
        pytest.raises(jax.errors.JaxRuntimeError, match="return wide @ t"),
    ):
        jax.block_until_ready(jax.jit(lambda x: on_host(broken, [x]))(x))
