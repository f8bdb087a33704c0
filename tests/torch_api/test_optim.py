"""Every optimizer of `torch.optim` on the device against the same on the CPU, and what its steps compile."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

os.environ.setdefault("PYTORCH_TESTING_DEVICE_ONLY_FOR", "cpu")

from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

import jaxtorch
from jaxtorch import CaptureError
from jaxtorch.base.options import config
from jaxtorch.dispatch import filling

STEPS = 3


def _implementations(info: OptimizerInfo) -> Iterator[dict[str, bool]]:
    if "foreach" in info.supported_impls:
        yield {"foreach": False}
    if info.has_capturable_arg:
        yield {"capturable": True}


def _cases() -> Iterator[Any]:
    """The default (foreach, where the optimizer has it) and fused with every set of arguments; others once."""
    for info in optim_db:
        if info.only_supports_sparse_grads:
            continue  # sparse tensors have no place on the device
        inputs = [i for i in info.optim_inputs_func("cpu") if "capturable" not in i.kwargs]
        cases = [(given, {}) for given in inputs]
        if "fused" in info.supported_impls:
            cases += [(given, {"fused": True}) for given in inputs]
        cases += [(inputs[0], implementation) for implementation in _implementations(info)]
        for given, implementation in cases:
            name = f"{info.name} {given.desc} {implementation or ''}".strip()
            yield pytest.param(info, given.kwargs, implementation, id=name)


def _model(info: OptimizerInfo) -> torch.nn.Module:
    torch.manual_seed(0)
    # Muon takes matrices only.
    bias = info.name != "Muon"
    # A line search multiplies rounding errors.
    dtype = torch.float64 if info.step_requires_closure else torch.float32
    return torch.nn.Sequential(
        torch.nn.Linear(5, 4, bias=bias, dtype=dtype),
        torch.nn.Tanh(),
        torch.nn.Linear(4, 3, bias=bias, dtype=dtype),
    )


def _trained(
    info: OptimizerInfo,
    model: torch.nn.Module,
    device: str,
    keywords: dict[str, Any],
    captured: bool = False,
) -> list[torch.Tensor]:
    """The parameters after some steps."""
    generator = torch.Generator().manual_seed(1)
    inputs, targets = (
        torch.randn(8, n, generator=generator).to(device, next(model.parameters()).dtype)
        for n in (5, 3)
    )
    model = copy.deepcopy(model).to(device)
    optimizer = info.optim_cls(model.parameters(), **copy.deepcopy(keywords))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    def step() -> None:
        if info.step_requires_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()

    step = jaxtorch.jit(step) if captured else step
    for _ in range(STEPS):
        step()
    return [p.detach().cpu() for p in model.parameters()]


def _assert_as_expected(
    info: OptimizerInfo, actual: list[torch.Tensor], expected: list[torch.Tensor]
) -> None:
    # Muon orthogonalizes in bfloat16.
    rtol, atol = (2e-2, 1e-3) if info.name == "Muon" else (1e-4, 1e-5)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=rtol, atol=atol)


@pytest.mark.parametrize(("info", "keywords", "implementation"), list(_cases()))
def test_steps_as_on_the_cpu(
    info: OptimizerInfo, keywords: dict[str, Any], implementation: dict[str, bool]
) -> None:
    model = _model(info)
    expected = _trained(info, model, "cpu", keywords)
    with config(fallback="error"):
        actual = _trained(info, model, "jax", keywords | implementation)
    _assert_as_expected(info, actual, expected)


def _default_cases() -> Iterator[Any]:
    """Those with torch's default implementation, for optimizers that step once per gradient."""
    for case in _cases():
        info, _, implementation = case.values
        if not implementation and not info.step_requires_closure:
            yield pytest.param(*case.values[:2], id=case.id)


@pytest.mark.parametrize(("info", "keywords"), list(_default_cases()))
def test_captured_steps_as_on_the_cpu(info: OptimizerInfo, keywords: dict[str, Any]) -> None:
    model = _model(info)
    if info.name == "Adafactor":  # torch reads the parameters' norms as Python numbers in each step
        with pytest.raises(CaptureError, match="cannot be read as a Python number"):
            _trained(info, model, "jax", keywords, captured=True)
        return
    expected = _trained(info, model, "cpu", keywords)
    actual = _trained(info, model, "jax", keywords, captured=True)
    _assert_as_expected(info, actual, expected)


@pytest.mark.parametrize(("info", "keywords"), list(_default_cases()))
def test_captured_steps_when_filling_takes_programs(
    info: OptimizerInfo, keywords: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rprop's state is made by `full_like` of the gradient, which the trace computes."""
    monkeypatch.setattr(filling, "_BUDGET", 0)
    test_captured_steps_as_on_the_cpu(info, keywords)


@pytest.mark.parametrize("keywords", [{}, {"fused": True}])
def test_a_new_learning_rate_compiles_nothing(keywords: dict[str, Any]) -> None:
    parameters = [torch.randn(3, 2, device="jax", requires_grad=True) for _ in range(4)]
    optimizer = torch.optim.AdamW(parameters, **keywords)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step() -> None:
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimizer.step()
        scheduler.step()

    step()
    step()
    before = jaxtorch.compile_count()
    for _ in range(3):
        step()
    assert jaxtorch.compile_count() == before


def test_grad_scaler_skips_a_step_with_infinite_gradients() -> None:
    for keywords in ({}, {"fused": True}):
        parameter = torch.ones(3, device="jax", requires_grad=True)
        optimizer = torch.optim.SGD([parameter], lr=0.1, **keywords)
        scaler = torch.amp.GradScaler("jax", init_scale=8.0)
        for factor in (1.0, float("inf")):
            optimizer.zero_grad()
            scaler.scale((parameter * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        torch.testing.assert_close(parameter.detach().cpu(), torch.full((3,), 0.9))
        assert scaler.get_scale() == 4.0


# -- the default: one fused operator --------------------------------------------------------------

FUSED: dict[str, Any] = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "Adagrad": torch.optim.Adagrad,
    "SGD": lambda p, **keywords: torch.optim.SGD(p, lr=0.1, momentum=0.9, **keywords),
}


def _parameters(device: str, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.rand(n, 2, generator=generator).to(device, dtype) for n in (2, 3, 4)]
    for p in made:
        p.requires_grad_()
        p.grad = torch.ones_like(p)
    return made


def _operators(run: Any) -> set[str]:
    """The names of the operators that a call runs."""
    with torch.profiler.profile() as profile:
        run()
    return {event.name for event in profile.events()}


def _is_fused(run: Any) -> bool:
    return any(name.startswith("aten::_fused_") for name in _operators(run))


def _assert_same(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.detach().cpu(), e.detach())


@pytest.mark.parametrize("name", FUSED)
def test_the_default_is_fused(name: str) -> None:
    optimizer = FUSED[name](_parameters("jax"))
    settings = copy.deepcopy({k: v for k, v in optimizer.param_groups[0].items() if k != "params"})
    for _ in range(2):
        assert _is_fused(optimizer.step)
    group = optimizer.param_groups[0]
    assert {k: v for k, v in group.items() if k != "params"} == settings
    assert not _is_fused(FUSED[name](_parameters("jax"), foreach=True).step)
    assert not _is_fused(FUSED[name](_parameters("jax"), foreach=False).step)
    assert not _is_fused(FUSED[name](_parameters("cpu")).step)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", FUSED)
def test_special_values(name: str, weight_decay: float, captured: bool) -> None:
    """Without decay, an infinite parameter must not make its gradient nan, nor a zero change its sign."""
    values = torch.tensor([0.0, -0.0, 1.5, -2.0, float("inf"), float("-inf"), float("nan"), 1e-30])
    results = []
    for device in ("cpu", "jax"):
        p = values.repeat(8).to(device).requires_grad_()
        p.grad = values.repeat_interleave(8).to(device)
        optimizer = FUSED[name]([p], weight_decay=weight_decay)
        step = jaxtorch.jit(optimizer.step) if captured and device == "jax" else optimizer.step
        for _ in range(2):
            step()
        state = [v.cpu() for v in optimizer.state[p].values() if v.dim()]
        results.append([p.detach().cpu(), *state])
    for a, e in zip(*reversed(results), strict=True):
        torch.testing.assert_close(a, e, equal_nan=True)
        numbers = ~e.isnan()
        assert torch.equal(torch.signbit(a)[numbers], torch.signbit(e)[numbers])


@pytest.mark.parametrize("name", FUSED)
def test_complex_parameters_are_not_fused(name: str) -> None:
    expected, actual = (_parameters(device, torch.complex64) for device in ("cpu", "jax"))
    optimizers = [FUSED[name](parameters) for parameters in (expected, actual)]
    assert not _is_fused(optimizers[1].step)
    optimizers[0].step()
    _assert_same(actual, expected)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_the_state_has_the_dtypes_of_the_cpu(name: str, default: torch.dtype) -> None:
    torch.set_default_dtype(default)
    try:
        states = []
        for device in ("cpu", "jax"):
            optimizer = FUSED[name](_parameters(device))
            optimizer.step()
            values = [s for of in optimizer.state.values() for s in sorted(of.items())]
            states.append([(key, v.dtype, v.shape) for key, v in values])
    finally:
        torch.set_default_dtype(torch.float32)
    assert states[1] == states[0]


def test_a_parameter_whose_first_gradient_comes_later() -> None:
    for name in FUSED:
        both = []
        for device in ("cpu", "jax"):
            parameters = _parameters(device)
            both.append(parameters)
            late, parameters[1].grad = parameters[1].grad, None
            optimizer = FUSED[name](parameters)
            optimizer.step()
            parameters[1].grad = late
            for _ in range(2):
                optimizer.step()
        _assert_same(both[1], both[0])


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize(("before", "after"), [("cpu", "jax"), ("jax", "cpu")])
def test_state_of_another_device(name: str, before: str, after: str) -> None:
    parameters = _parameters(before)
    optimizer = FUSED[name](parameters)
    optimizer.step()
    state = optimizer.state_dict()
    moved = [p.detach().to(after).requires_grad_() for p in parameters]
    for p in moved:
        p.grad = torch.ones_like(p)
    other = FUSED[name](moved)
    other.load_state_dict(state)
    expected = _parameters("cpu")
    reference = FUSED[name](expected)
    reference.step()
    for _ in range(2):
        other.step()
        reference.step()
    _assert_same(moved, expected)


def test_an_error_of_the_closure_changes_no_setting() -> None:
    optimizer = torch.optim.AdamW(_parameters("jax"))

    def closure() -> float:
        assert optimizer.param_groups[0]["fused"] is None
        raise ValueError("closure")

    with pytest.raises(ValueError, match="closure"):
        optimizer.step(closure)
    assert optimizer.param_groups[0]["fused"] is None
    assert _is_fused(lambda: optimizer.step(closure=lambda: 1.0))


def test_an_error_of_the_step_is_forgotten_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = _parameters("jax")
    optimizer = torch.optim.AdamW(parameters)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "_fused_adamw_", None)
        with pytest.raises(TypeError):
            optimizer.step()
    optimizer.step()
    assert optimizer.param_groups[0]["fused"] is None


@pytest.mark.parametrize(
    "keywords", [{"amsgrad": True}, {"capturable": True}, {"lr": torch.tensor(0.01)}]
)
def test_settings_of_adam(keywords: dict[str, Any]) -> None:
    expected, actual = _parameters("cpu"), _parameters("jax")
    reference = torch.optim.Adam(
        expected, **{k: v for k, v in keywords.items() if k != "capturable"}
    )
    optimizer = torch.optim.Adam(actual, **keywords)
    for _ in range(2):
        assert _is_fused(optimizer.step)
        reference.step()
    _assert_same(actual, expected)


@pytest.mark.parametrize("name", FUSED)
def test_eager_and_captured_steps_of_one_optimizer(name: str) -> None:
    expected, actual = _parameters("cpu"), _parameters("jax")
    reference, optimizer = FUSED[name](expected), FUSED[name](actual)
    captured = jaxtorch.jit(optimizer.step)
    for step in (captured, optimizer.step, captured, captured, optimizer.step):
        for o in (reference, optimizer):
            o.param_groups[0]["lr"] *= 0.5
        step()
        reference.step()
    _assert_same(actual, expected)


def _step_with_closure(
    optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]
) -> Callable[[], object]:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.stack([p.square().sum() for p in parameters]).sum()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


@pytest.mark.parametrize("name", FUSED)
def test_captured_closures_whose_gradients_come_later(name: str) -> None:
    """The second parameter gets its first gradient, and so its state, after the first."""
    both = []
    for device in ("cpu", "jax"):
        parameters = _parameters(device)[:2]
        both.append(parameters)
        optimizer = FUSED[name](parameters)
        optimizer.zero_grad()
        steps = [_step_with_closure(optimizer, parameters[:count]) for count in (1, 2)]
        if device == "jax":
            steps = [jaxtorch.jit(step) for step in steps]
        for i in (0, 0, 1, 1, 0, 1):
            steps[i]()
    _assert_same(both[1], both[0])


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_adam_refuses_parameters_of_another_dtype_than_its_state(
    kind: Any, dtype: torch.dtype, fused: bool | None
) -> None:
    for device in ("cpu", "jax"):
        p = torch.nn.Parameter(torch.ones(3, device=device))
        optimizer = kind([p], fused=fused)
        p.grad = torch.ones_like(p)
        optimizer.step()
        p.data = p.data.to(dtype)
        p.grad = torch.ones_like(p)
        with pytest.raises(RuntimeError, match="expected"):
            optimizer.step()
