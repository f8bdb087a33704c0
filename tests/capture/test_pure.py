"""`pure` against eager torch: values, gradients, statistics, random numbers, and what it refuses."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jaxtorch
from jaxtorch.capture.dependencies.guard import Guard
from jaxtorch.capture.errors import CaptureError

Pair = namedtuple("Pair", "first second")


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10)]
    return nn.Sequential(*layers).to("jax")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 1, 8, 8, device="jax"), torch.randint(0, 10, (5,), device="jax")


def test_traced_once_and_trains_as_eager_torch_does() -> None:
    model, (x, y) = network(), data()
    twin = copy.deepcopy(model)

    @jaxtorch.pure
    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), y)

    for _ in range(3):
        loss = loss_of(x, y)
        loss.backward()
        expected = F.cross_entropy(twin(x), y)
        expected.backward()
        torch.testing.assert_close(loss, expected)
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
        for p, q in zip(model.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(p, q)
    assert loss_of.cache_info().misses == 1
    model.eval()
    twin.eval()
    torch.testing.assert_close(loss_of(x, y), F.cross_entropy(twin(x), y))
    assert loss_of.cache_info().misses == 2


def test_training_and_evaluating_keep_a_program_each() -> None:
    model, (x, _) = network(), data()
    model.insert(3, nn.Dropout(0.5))
    pure = jaxtorch.pure(model)
    for _ in range(3):
        pure(x)
        mean = model[1].running_mean.clone()
        model.eval()
        torch.testing.assert_close(pure(x), pure(x))  # no dropout
        torch.testing.assert_close(model[1].running_mean, mean)
        model.train()
    assert pure.cache_info().misses == 2
    assert pure.cache_info().currsize == 2
    model[3] = nn.Identity()  # neither can hold again
    pure(x)
    assert pure.cache_info().currsize == 1


def test_max_entries_counts_the_programs_of_every_mode() -> None:
    model, (x, _) = network(), data()
    pure = jaxtorch.pure(model, max_entries=1)
    for training in (True, False, True):
        pure(x)
        model.train(not training)
    assert (pure.cache_info().misses, pure.cache_info().currsize) == (3, 1)


def test_gradients_reach_arguments_and_double_backward() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x @ w).sin() * x.exp().sum(1, keepdim=True)).sum()

    x = torch.randn(3, 3, dtype=torch.float64, device="jax", requires_grad=True)
    w = torch.randn(3, 3, dtype=torch.float64, device="jax", requires_grad=True)
    pure = jaxtorch.pure(f)
    assert torch.autograd.gradcheck(pure, (x, w))
    assert torch.autograd.gradgradcheck(pure, (x, w))
    hidden = (x * 2).tanh()  # no leaf
    (ours,) = torch.autograd.grad(pure(hidden, w), x, retain_graph=True)
    (theirs,) = torch.autograd.grad(f(hidden, w), x)
    torch.testing.assert_close(ours, theirs)


def test_detach_and_no_grad_stop_gradients() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = x.sum()
        return (x * x.detach() * scale).sum()

    x = torch.randn(4, device="jax", requires_grad=True)
    (ours,) = torch.autograd.grad(jaxtorch.pure(f)(x), x)
    (theirs,) = torch.autograd.grad(f(x), x)
    torch.testing.assert_close(ours, theirs)


def test_dropout_draws_anew_and_a_seed_reproduces() -> None:
    drop = jaxtorch.pure(lambda x: F.dropout(x, 0.5))
    x = torch.ones(64, device="jax")
    torch.manual_seed(1)
    first, second = drop(x), drop(x)
    torch.manual_seed(1)
    assert torch.equal(first, drop(x))
    assert torch.equal(second, drop(x))
    assert not torch.equal(first, second)


def test_views_as_arguments_do_not_trace_again() -> None:
    rows = torch.randn(6, 4, device="jax")
    f = jaxtorch.pure(lambda x: x * 2 + 1)
    for row in rows:
        torch.testing.assert_close(f(row), row * 2 + 1)
    assert f.cache_info().misses == 1


def test_gradients_of_arguments_and_parameters_in_another_memory_order() -> None:
    x = torch.randn(3, 3, dtype=torch.float64, device="jax", requires_grad=True)
    weights = torch.arange(9.0, device="jax").reshape(3, 3)
    f = jaxtorch.pure(lambda a: (a.sin() * weights).sum(1))
    for view in (
        lambda x: x.T,
        lambda x: x[:, None].transpose(0, 2)[:, 0],
        lambda x: x[0].expand(3, 3),
    ):
        assert torch.autograd.gradcheck(lambda x, view=view: f(view(x)), (x,))
        assert torch.autograd.gradgradcheck(lambda x, view=view: f(view(x)), (x,))
    layer = nn.Conv2d(2, 2, 2).to("jax").to(memory_format=torch.channels_last)
    image = torch.randn(1, 2, 4, 4, device="jax")
    (ours,) = torch.autograd.grad(
        jaxtorch.pure(lambda a: layer(a).sin().sum())(image), layer.weight
    )
    (theirs,) = torch.autograd.grad(layer(image).sin().sum(), layer.weight)
    torch.testing.assert_close(ours, theirs)


def test_pytrees_statics_and_keywords() -> None:
    @jaxtorch.pure
    def f(batch: dict[str, Any], mode: str, *, scale: float = 1.0, none: Any = None) -> Any:
        x = batch["x"] * scale
        return {"pair": Pair(x + 1, mode), "list": [x, none, 3]}

    x = torch.arange(3.0, device="jax")
    result = f({"x": x}, "sum", scale=2.0)
    assert isinstance(result["pair"], Pair)
    assert torch.equal(result["pair"].first, x * 2 + 1)
    assert result["pair"].second == "sum"
    assert result["list"][1:] == [None, 3]
    assert torch.equal(f({"x": x}, "sum", scale=3.0)["list"][0], x * 3)


def test_what_the_code_names_is_guarded() -> None:
    scale = 2.0
    model = nn.Linear(2, 2).to("jax")
    f = jaxtorch.pure(lambda x: model(x) * scale)
    x = torch.ones(2, device="jax")
    assert torch.allclose(f(x), model(x) * 2)
    scale = 3.0
    assert torch.allclose(f(x), model(x) * 3)
    model.weight = nn.Parameter(torch.zeros(2, 2, device="jax"))
    assert torch.allclose(f(x), model.bias * 3)


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_a_module_on_the_cpu_is_an_error_that_says_what_to_move(capture: Any, device: str) -> None:
    """An argument on the CPU is taken to the device, so `jax:0 and cpu` alone would name no tensor of the user's."""
    model = nn.Linear(3, 2, device="cpu")
    x = torch.ones(4, 3, device=device)
    with pytest.raises(RuntimeError, match=r"modules and other tensors where they are: move them"):
        capture(lambda x: model(x))(x)
    with pytest.raises(RuntimeError, match=r"jax:0 and cpu! .* Move one of them"):
        model(x.to("jax"))


def test_cpu_tensors_are_borrowed_and_results_are_on_the_cpu() -> None:
    x = torch.randn(3, requires_grad=True)
    y = jaxtorch.pure(lambda x: x.sin())(x)
    assert y.device.type == "cpu"
    torch.testing.assert_close(y, x.sin())
    y.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (lambda x: x.add_(1), "jit"),
        (lambda x: x if x.sum() > 0 else -x, "torch.where"),
        (lambda x: x * x.max().item(), "torch.where"),
        (lambda x: x.nonzero(), "size depends on its values"),
    ],
    ids=["in-place", "branch", "item", "nonzero"],
)
def test_what_cannot_be_captured_is_one_sentence(code: Any, words: str) -> None:
    x = torch.ones(3, device="jax")
    before = x.clone()
    with pytest.raises(CaptureError, match=words):
        jaxtorch.pure(code)(x)
    assert torch.equal(x, before)


def test_a_tensor_kept_outside_is_refused() -> None:
    kept = []
    with pytest.raises(CaptureError, match="changes the contents of `kept`"):
        jaxtorch.pure(lambda x: kept.append(x * 2))(torch.ones(3, device="jax"))


def test_a_dropped_model_is_free() -> None:
    model = nn.Linear(3, 3).to("jax")
    alive = weakref.ref(model)
    holder = {"model": model}
    f = jaxtorch.pure(lambda x: holder["model"](x))
    f(torch.ones(3, device="jax"))
    del model
    holder.clear()
    gc.collect()
    assert alive() is None


def test_nested_and_methods() -> None:
    class Scaled:
        def __init__(self) -> None:
            self.w = torch.full((), 3.0, device="jax")

        @jaxtorch.pure
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return inner(x) * self.w

    inner = jaxtorch.pure(lambda x: x + 1)
    x = torch.ones(2, device="jax")
    assert torch.equal(Scaled()(x), (x + 1) * 3)


def test_a_number_that_changes_is_an_operand_and_a_loop_count_is_not() -> None:
    x = torch.ones(3, device="jax")
    scaled = jaxtorch.pure(lambda x, s: x * s + s)
    for s in (0.5, 0.25, 3.0, -1.0):
        torch.testing.assert_close(scaled(x, s).cpu(), torch.ones(3) * s + s)
    assert scaled.cache_info().misses == 2

    def repeated(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            x = x + n
        return x

    pure = jaxtorch.pure(repeated)
    for n in (2, 3, 4, 3):
        assert torch.equal(pure(x, n), repeated(x, n))


@pytest.mark.parametrize("dtype", [torch.int32, torch.bfloat16, torch.float64], ids=str)
def test_a_number_as_an_operand_promotes_as_a_number(dtype: torch.dtype) -> None:
    x = torch.arange(4, device="jax").to(dtype)
    pure = jaxtorch.pure(lambda x, s: (x * s, x + s))
    for s in (1, 2, 3, 0.1, 0.3, 0.7):
        for ours, theirs in zip(pure(x, s), (x.cpu() * s, x.cpu() + s), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs)


def test_an_object_among_the_arguments_is_not_kept_alive() -> None:
    model = nn.Linear(2, 2).to("jax")
    apply = jaxtorch.pure(lambda m, x: m(x))
    apply(model, torch.ones(2, device="jax"))
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_under_and_over_torch_func() -> None:
    x, w = torch.randn(3, 4, device="jax"), torch.randn(4, 4, device="jax", requires_grad=True)

    def inside(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        gradient = torch.func.grad(lambda q: (q @ w).sin().sum())(x)
        return torch.vmap(lambda row: (row * row).sum())(gradient).sum()

    (ours,) = torch.autograd.grad(jaxtorch.pure(inside)(w, x), w)
    (theirs,) = torch.autograd.grad(inside(w, x), w)
    torch.testing.assert_close(ours, theirs)
    value, tangent = torch.func.jvp(jaxtorch.pure(torch.sin), (x,), (x,))
    torch.testing.assert_close(tangent, x.cos() * x)
    torch.testing.assert_close(value, x.sin())
    each = torch.func.vmap(torch.func.grad(jaxtorch.pure(lambda row: row.sin().sum())))(x)
    torch.testing.assert_close(each, x.cos())


def test_a_gradient_penalty() -> None:
    def penalty(x: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        return (gradient**2).sum()

    x = torch.randn(3, device="jax", requires_grad=True)
    (ours,) = torch.autograd.grad(jaxtorch.pure(penalty)(x), x)
    (theirs,) = torch.autograd.grad(penalty(x), x)
    torch.testing.assert_close(ours, theirs)


def test_threads() -> None:
    pure = jaxtorch.pure(lambda x: (x @ x).tanh().sum())
    results: dict[int, torch.Tensor] = {}

    def work(i: int) -> None:
        results[i] = pure(torch.full((8 + i % 3, 8 + i % 3), float(i) / 100, device="jax"))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, value in results.items():
        x = torch.full((8 + i % 3, 8 + i % 3), float(i) / 100)
        torch.testing.assert_close(value.cpu(), (x @ x).tanh().sum())
    assert len(results) == 12
    assert not torch.compiler.is_compiling()


def test_none_among_the_arguments_is_traced_once():
    f = jaxtorch.pure(lambda x, mask: x + 1 if mask is None else x * mask)
    x = torch.ones(2, device="jax")
    for _ in range(3):
        f(x, None)
    assert f.cache_info().misses == 1


class Registry:
    """A class that the functions below enumerate."""

    k_a = 2.0


@pytest.mark.parametrize(
    "items",
    [
        lambda: vars(Registry).items(),
        lambda: Registry.__dict__.items(),
        lambda: [(n, getattr(Registry, n)) for n in dir(Registry)],
        lambda: [(n, getattr(Registry(), n)) for n in dir(Registry())],
    ],
    ids=["vars", "__dict__", "dir", "dir of an object"],
)
def test_code_that_enumerates_a_class_is_traced_once(items: Callable[[], Any]) -> None:
    f = jaxtorch.pure(lambda x: x * sum(v for n, v in items() if n.startswith("k_")))
    for _ in range(3):
        assert f(torch.ones(2, device="jax")).tolist() == [2.0, 2.0]
    assert f.cache_info().misses == 1


def test_a_module_made_and_dropped_inside_is_no_dependency() -> None:
    @jaxtorch.pure
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.ReLU()(x)

    x = torch.tensor([-1.0, 2.0], device="jax")
    for _ in range(2):
        assert f(x).tolist() == [0.0, 2.0]
    assert f.cache_info().hits == 1


def test_a_gradient_to_one_of_two_arguments_over_one_buffer() -> None:
    def f(transposed: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ transposed @ transposed).sin().sum() + w.detach().sum()

    x = torch.randn(2, 3, device="jax")
    w = torch.randn(3, 3, device="jax", requires_grad=True)
    for arguments in ((w.T, w), (w, w.T)):
        (expected,) = torch.autograd.grad(f(*arguments), w)
        (ours,) = torch.autograd.grad(jaxtorch.pure(f)(*arguments), w)
        torch.testing.assert_close(ours, expected)


def test_the_paddings_row_of_an_embedding_gets_no_gradient():
    table = nn.Embedding(5, 3, padding_idx=1)
    ids = torch.tensor([[0, 1, 2], [1, 1, 4]])
    own = copy.deepcopy(table).to("jax")
    jaxtorch.pure(own)(ids.to("jax")).square().sum().backward()
    table(ids).square().sum().backward()
    with torch.no_grad():
        table.weight[1] = 1.0
        own.weight[1] = 1.0
    table(ids).square().sum().backward()
    jaxtorch.pure(own)(ids.to("jax")).square().sum().backward()
    torch.testing.assert_close(own.weight.grad.cpu(), table.weight.grad)


def test_what_depends_on_no_input_has_a_value_also_after_it_met_one() -> None:
    @jaxtorch.pure
    def f(x: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor(3.0, device="jax")
        first = x * scale
        return first + scale.item()

    @jaxtorch.pure
    def pairs(x: torch.Tensor) -> torch.Tensor:
        return torch.combinations(x, 2)  # by a mask that is used twice

    x = torch.arange(4.0, device="jax")
    torch.testing.assert_close(f(x).cpu(), x.cpu() * 3 + 3)
    torch.testing.assert_close(pairs(x).cpu(), torch.combinations(x.cpu(), 2))


def test_another_object_in_the_memory_of_a_dead_one_is_another() -> None:
    class Thing:
        pass

    # Alone in its pool, its memory would be free for objects of other sizes.
    neighbours = [Thing() for _ in range(100)]
    thing = Thing()
    guard, number = Guard("thing", thing), id(thing)
    assert guard.is_at(thing)
    assert guard.accepts(thing)
    del thing
    others = neighbours + [Thing() for _ in range(100_000)]
    (other,) = [o for o in others if id(o) == number]
    assert not guard.is_at(other)
    assert not guard.accepts(other)
