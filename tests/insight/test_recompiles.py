"""Why code was retraced, by construction: each test changes one thing, and that thing is named."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import torch

import jaxtorch
from jaxtorch.capture.dependencies.tokens import Value
from jaxtorch.capture.reasons import changes, reasons
from jaxtorch.insight import explain_recompiles
from jaxtorch.insight.recompiles import Retrace, clear, functions, named, totals


def retraces(function: Any) -> list[tuple[str, ...]]:
    """What is said of a function under `pure` or `jit`."""
    (info,) = [f for f in functions() if f.programs[0]._record.cause.function is function.source]
    return [r.what for r in info.retraces]


def ones(*size: int, **more: Any) -> torch.Tensor:
    return torch.ones(*size, device="jax", **more)


def test_a_size() -> None:
    f = jaxtorch.pure(lambda images, scale: images * scale)
    for n in (32, 32, 7):
        f(ones(n, 4), ones(4))
    assert retraces(f) == [("images[0] 32 -> 7",)]


def test_a_dtype_a_rank_and_a_gradient() -> None:
    f = jaxtorch.pure(lambda x: x * 2)
    f(ones(3))
    f(ones(3).double())
    f(ones(3, requires_grad=True))
    f(ones(3, 1, dtype=torch.float64))
    assert retraces(f) == [
        ("x float32 -> float64",),
        ("x now requires a gradient",),  # beside the first, not the second
        ("x (3,) -> (3, 1)",),
    ]


def test_a_leaf_in_a_dictionary_of_a_keyword() -> None:
    f = jaxtorch.pure(lambda x, batch=None: x + batch["a"][1])
    f(ones(2), batch={"a": [ones(2), ones(2)]})
    f(ones(2), batch={"a": [ones(2), ones(1)]})
    assert retraces(f) == [("batch['a'][1][0] 2 -> 1",)]


def test_a_number_becomes_an_operand() -> None:
    f = jaxtorch.pure(lambda x, n: x * n)
    for n in (2, 3, 4, 5):
        f(ones(2), n)
    (what,) = retraces(f)
    assert what == ("n is no longer 2: a number that changes becomes an operand",)


def test_a_static_number_and_a_flag() -> None:
    f = jaxtorch.pure(lambda x, n, up=True: x.repeat(n) if up else x, static_argnames="n")
    f(ones(2), 2)
    f(ones(2), 3)
    f(ones(2), 3, up=False)
    assert retraces(f) == [("n 2 -> 3",), ("up is new",)]


def test_a_mode() -> None:
    f = jaxtorch.pure(lambda x: x * 2)
    f(ones(2))
    with torch.no_grad():
        f(ones(2))
    with jaxtorch.config(matmul_precision="highest"):
        f(ones(2))
    assert retraces(f) == [
        ("torch.is_grad_enabled() True -> False",),
        ("matmul_precision None -> 'highest'",),
    ]


def test_train_and_eval() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout()).to("jax")
    f = jaxtorch.pure(lambda x: model(x), name="trained")
    f(ones(1, 2))
    model.eval()
    f(ones(1, 2))
    assert retraces(f) == [("model.1.training True -> False",)]
    (advice,) = explain_recompiles("trained")[-1].retraces[-1].advice
    assert "once for each" in advice
    model.train()
    f(ones(1, 2))
    assert len(retraces(f)) == 1  # both are kept


SCALE = 2.0


def test_a_global_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    f = jaxtorch.pure(lambda x: x * SCALE)
    f(ones(2))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert f(ones(2)).tolist() == [3.0, 3.0]
    assert retraces(f) == [("SCALE 2.0 -> 3.0",)]


def test_a_name_of_the_closure_that_was_defined_anew() -> None:
    def one(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def two(x: torch.Tensor) -> torch.Tensor:
        return x + 2

    inner = one
    f = jaxtorch.pure(lambda x: inner(x))
    f(ones(2))
    inner = two
    f(ones(2))
    assert retraces(f) == [("function inner was redefined",)]


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_a_step_that_makes_its_optimizers_state(optimizer: type[torch.optim.Optimizer]) -> None:
    w = ones(2, requires_grad=True)
    options = {"momentum": 0.9, "dampening": 0.5} if optimizer is torch.optim.SGD else {}
    made = optimizer([w], lr=0.1, **options)

    @jaxtorch.jit
    def step() -> None:
        made.zero_grad()
        w.sum().backward()
        made.step()

    for _ in range(3):
        step()
    # The first momentum is a copy of the gradient, which the dampening does not apply to.
    state = "tensors that its first run created are now inputs"
    assert retraces(step) == ([(state,)] if options else [])


def test_a_program_that_was_not_kept() -> None:
    f = jaxtorch.pure(lambda x: x * 2, max_entries=1)
    for n in (2, 3, 2):
        f(ones(n))
    assert retraces(f) == [("x[0] 2 -> 3",), ("its program was evicted (max_entries)",)]


def test_a_trace_that_fails_leaves_no_reason_behind() -> None:
    f = jaxtorch.pure(lambda x, n: x * float(Decimal(n)))
    for n in (2, 3, 4):  # `Decimal` takes only Python's own numbers
        f(ones(2), n)
    assert retraces(f) == [("n 2 -> 3",), ("n 3 -> 4",)]


def test_a_number_whose_value_the_code_needs() -> None:
    f = jaxtorch.pure(lambda x, n: x * len(range(n)))
    for n in (2, 3, 4):
        f(ones(2), n)
    assert retraces(f) == [
        ("n is no longer 2: a number that changes becomes an operand",),
        ("n is 4: the code needs its value",),
    ]


def test_it_is_said_in_words_with_what_to_do() -> None:
    @jaxtorch.pure(name="said_in_words")
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert repr(explain_recompiles("said_in_words")) == "Nothing was traced twice."
    f(ones(5))
    f(ones(6))
    text = repr(explain_recompiles("said_in_words"))
    assert "said_in_words (pure): traced 2 times" in text
    assert f"trace 2 ({__file__}, line " in text
    assert "x[0] 5 -> 6" in text
    assert "drop_last=True" in text


def test_what_holds_for_several_names_is_said_once() -> None:
    @jaxtorch.pure(name="of_several")
    def f(x: torch.Tensor, y: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        return x.sum() + y.sum() + sum(m.sum() for m in more)

    f(ones(5), ones(5, 2))
    f(ones(6), ones(6, 3))
    (info,) = explain_recompiles("of_several")
    (retrace,) = info.retraces
    assert retrace.what == ("x[0] 5 -> 6", "y[0] 5 -> 6, y[1] 2 -> 3")
    assert len(retrace.advice) == 2
    (advice,) = set(retrace.advice)
    assert "sizes of `x` and `y` the same" in advice
    assert repr(explain_recompiles("of_several")).count("drop_last") == 1


def test_of_many_names_some_are_said() -> None:
    names = [f"n{i}" for i in range(9)]
    old = {name: Value(float, "0.5") for name in names}
    new = {name: Value(float, "0.3") for name in names}
    (advice,) = {reason.advice for reason in reasons(changes(old, new))}
    assert "`n0`, `n1`, `n2` and 6 more" in advice


def test_what_is_cleared_is_traced_anew() -> None:
    f = jaxtorch.pure(lambda x: x * 2, name="cleared_away")
    f(ones(2))
    clear(named("cleared_away"))
    assert f.cache_info().currsize == 0
    assert not [g for g in functions() if g.name == "cleared_away"]
    f(ones(2))
    assert retraces(f) == []
    assert f.cache_info().misses == 1


def test_eager_programs_can_be_cleared_too() -> None:
    x = ones(2, 9)
    torch.asinh(x)
    count = jaxtorch.compile_count()
    torch.asinh(x)
    assert jaxtorch.compile_count() == count
    clear([f for f in functions() if f.kind == "eager"])
    torch.asinh(x)
    assert jaxtorch.compile_count() > count


def test_an_operator_with_many_shapes_is_told_with_its_line() -> None:
    name = "bitwise_left_shift.Tensor"
    for n in range(2, 8):
        x = torch.ones(n, device="jax", dtype=torch.int32)
        torch.bitwise_left_shift(x, x)
    assert not explain_recompiles(name)
    for n in range(8, 14):
        x = torch.ones(n, device="jax", dtype=torch.int32)
        torch.bitwise_left_shift(x, x)
    (info,) = explain_recompiles(name)
    assert (info.kind, info.traces) == ("eager", 12)
    assert info.retraces[-1].what == ("int32[12], int32[12] -> int32[13], int32[13]",)
    assert info.location is not None
    assert info.location.file == __file__
    assert "traced 12 times" in repr(explain_recompiles(name))


def test_an_edit_of_a_helper_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function with other code was edited; one with the same code, but another closure, is made at each call."""
    f = jaxtorch.pure(lambda x: cell_helper(x), name="edited")  # noqa: F821  (set below)
    for code in ("lambda x: x * 2", "lambda x: x * 3"):
        monkeypatch.setitem(globals(), "cell_helper", eval(code))
        f(ones(2))
    (retrace,) = explain_recompiles("edited")[-1].retraces
    assert retrace.what == ("function cell_helper was redefined",)
    assert "nothing to do" in retrace.advice[0]

    def made(factor: float) -> Any:
        return lambda x, factor=factor: x * factor

    for factor in (2.0, 3.0):
        monkeypatch.setitem(globals(), "cell_helper", made(factor))
        f(ones(2))
    advice = explain_recompiles("edited")[-1].retraces[-1].advice
    assert advice == ("Define the function once, in a cell of its own.",)


def test_gradients_that_come_or_go_are_one_reason_with_advice_of_their_own() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).to("jax")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @jaxtorch.jit(name="stepped")
    def step(x: torch.Tensor) -> None:
        for p in model.parameters():
            if p.grad is not None:
                p.grad = None
        model(x).sum().backward()
        optimizer.step()

    step(ones(5, 3))
    step(ones(5, 3))  # with gradients
    optimizer.zero_grad(set_to_none=True)
    step(ones(6, 3))  # another size, without gradients
    step(ones(6, 3))
    for retrace in explain_recompiles("stepped")[-1].retraces:
        assert not any("optimizer" in advice for advice in retrace.advice)
        gradients = [what for what in retrace.what if ".grad" in what]
        assert len(gradients) <= 1
        for what, advice in zip(retrace.what, retrace.advice, strict=True):
            assert (".grad" in what) == ("once for each" in advice)
            assert (what == "x[0] 5 -> 6") == ("drop_last" in advice)
    said = [what for r in explain_recompiles("stepped")[-1].retraces for what in r.what]
    assert "x[0] 5 -> 6" in said
    assert any("and 3 other gradients are new" in what for what in said)


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("mask", "Pass `mask` at every call or at none."),
        ("cfg.mask", "Keep the contents of `cfg` the same at every call."),
        ("state['p'].grad", "Calls with and without a gradient in `.grad` have separate programs"),
    ],
)
def test_what_is_there_or_not_has_advice_that_fits(path: str, advice: str) -> None:
    for before, after in (({}, {path: Value(int, 3)}), ({path: Value(int, 3)}, {})):
        (reason,) = reasons(changes(before, after))
        assert reason.advice.startswith(advice)


def test_totals_by_line_add_up() -> None:
    f = jaxtorch.pure(lambda x: x * 2, name="totalled")
    for n in (11, 12):
        f(ones(n))
    (function,) = named("totalled")
    (total,) = totals(function.programs)
    assert total.programs == 2
    assert total.location == function.location
    assert total.seconds == pytest.approx(function.seconds)


@pytest.fixture
def limit() -> Iterator[None]:
    before = jaxtorch.config.max_traces
    jaxtorch.config.update(max_traces=3)
    yield
    jaxtorch.config.update(max_traces=before)


@pytest.mark.usefixtures("limit")
def test_a_warning_past_the_limit_names_line_and_cause_once() -> None:
    @jaxtorch.pure(name="too_often")
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (1, 2, 3):
            f(ones(n))
    with pytest.warns(UserWarning, match=r"`too_often` was traced 4 times") as caught:
        f(ones(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(ones(5))
    (warning,) = caught
    assert "x[0] 3 -> 4" in str(warning.message)
    assert "drop_last" in str(warning.message)
    assert warning.filename == __file__
    assert f"called in {__file__}, line {warning.lineno}" in str(warning.message)


@pytest.mark.usefixtures("limit")
def test_the_limit_is_no_part_of_a_program() -> None:
    f = jaxtorch.pure(lambda x: x * 2)
    f(ones(2))
    jaxtorch.config.update(max_traces=7)
    f(ones(2))
    assert f.cache_info().misses == 1
    assert jaxtorch.config.max_traces == 7
    with pytest.raises(ValueError, match="whole number"):
        jaxtorch.config.update(max_traces=0)
    assert jaxtorch.config.max_traces == 7


def test_a_retrace_reads_as_a_line() -> None:
    assert str(Retrace(2, None, ("a", "b"), ("", ""))) == "trace 2: a, b"


def test_a_call_that_is_refused_before_its_trace_is_no_trace() -> None:
    f = jaxtorch.pure(lambda x, k: x * 1, static_argnames="k")
    x = torch.ones(2, device="jax")
    with pytest.raises(TypeError, match="static argument"):
        f(x, x)
    assert not f.source.history
