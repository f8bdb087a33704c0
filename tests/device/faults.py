"""Code of users that raises where torch's C++ calls it: a table.

`test_errors_in_hooks.py` runs it in a process of its own, for what it tests is that the process does not end. Each case
runs on the CPU and on the device, in the main thread and in another one, and prints its name, and whether the error
was the same and the next backward pass right.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

import jaxtorch


class OwnError(Exception):
    """Of no kind that torch or jax knows."""


class Interrupting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        raise OwnError("backward")


def fails(*args: Any) -> Any:
    raise OwnError("from a hook")


def exits(*args: Any) -> Any:
    sys.exit(3)


def interrupts(*args: Any) -> Any:
    raise KeyboardInterrupt("pressed")


def fails_below(*args: Any) -> Any:
    """An error of an operator, on the tensor's device."""
    return torch.ones(2, device=args[-1].device) @ torch.ones(3, device=args[-1].device)


def returns_no_tensor(*args: Any) -> Any:
    return "no tensor"


Case = Callable[[torch.Tensor, Any], None]


def tensor_hook(x: torch.Tensor, raises: Any) -> None:
    y = x * 2
    y.register_hook(raises)
    (y.sum() + y.sin().sum()).backward()


def leaf_hook(x: torch.Tensor, raises: Any) -> None:
    x.register_hook(raises)
    (x * 2).sum().backward()


def hook_in_grad(x: torch.Tensor, raises: Any) -> None:
    y = x.exp()
    y.register_hook(raises)
    torch.autograd.grad(y.sum(), x, create_graph=True)


def retained_grad(x: torch.Tensor, raises: Any) -> None:
    y = x * 2
    y.retain_grad()
    y.register_hook(raises)
    y.sum().backward(retain_graph=True)


def accumulated_hook(x: torch.Tensor, raises: Any) -> None:
    x.register_post_accumulate_grad_hook(raises)
    (x * 2).sum().backward()


def node_hook(x: torch.Tensor, raises: Any) -> None:
    y = (x * 2).sin()
    y.grad_fn.register_hook(raises)
    y.sum().backward()


def node_prehook(x: torch.Tensor, raises: Any) -> None:
    y = (x * 2).sin()
    y.grad_fn.register_prehook(raises)
    y.sum().backward()


def multi_grad_hook(x: torch.Tensor, raises: Any) -> None:
    y, z = x * 2, x * 3
    torch.autograd.graph.register_multi_grad_hook((y, z), lambda grads: raises(x))
    (y + z).sum().backward()


def module_hook(x: torch.Tensor, raises: Any) -> None:
    module = torch.nn.Linear(3, 3, device=x.device)
    module.register_full_backward_hook(lambda m, inputs, outputs: raises(x))
    module(x).sum().backward()


def module_prehook(x: torch.Tensor, raises: Any) -> None:
    module = torch.nn.Linear(3, 3, device=x.device)
    module.register_full_backward_pre_hook(lambda m, outputs: raises(x))
    module(x).sum().backward()


def forward_hook(x: torch.Tensor, raises: Any) -> None:
    module = torch.nn.Linear(3, 3, device=x.device)
    module.register_forward_hook(lambda m, inputs, output: raises(x))
    module(x).sum().backward()


def pack_hook(x: torch.Tensor, raises: Any) -> None:
    with torch.autograd.graph.saved_tensors_hooks(raises, lambda t: t):
        (x * 2).sin().sum().backward()


def unpack_hook(x: torch.Tensor, raises: Any) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, raises):
        y = (x * 2).sin().sum()
    y.backward()


def again(x: torch.Tensor, raises: Any, reentrant: bool) -> None:
    calls = []

    def block(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return raises(x) if len(calls) == 2 else (x * 2).sin()

    checkpoint(block, x, use_reentrant=reentrant).sum().backward()  # type: ignore[union-attr]


def recomputation(x: torch.Tensor, raises: Any) -> None:
    again(x, raises, False)


def reentrant_recomputation(x: torch.Tensor, raises: Any) -> None:
    again(x, raises, True)


def backward_within_a_hook(x: torch.Tensor, raises: Any) -> None:
    def hook(grad: torch.Tensor) -> None:
        inner = x.detach().clone().requires_grad_()
        tensor_hook(inner, raises)

    y = x * 2
    y.register_hook(hook)
    y.sum().backward()


def function(x: torch.Tensor, raises: Any) -> None:
    Interrupting.apply(x).sum().backward()


def end_of_backward(x: torch.Tensor, raises: Any) -> None:
    y = x * 2
    y.register_hook(
        lambda grad: torch.autograd.Variable._execution_engine.queue_callback(lambda: raises(x))
    )
    y.sum().backward()


def with_anomalies_detected(x: torch.Tensor, raises: Any) -> None:
    with torch.autograd.detect_anomaly(check_nan=False):
        tensor_hook(x, raises)


def on_both_devices(x: torch.Tensor, raises: Any) -> None:
    y = x * 2
    z = y.cpu() * 3
    z.register_hook(raises)
    z.sum().backward()


def _pure(function: Callable[..., Any], x: torch.Tensor) -> Callable[..., Any]:
    return jaxtorch.pure(function) if x.device.type == "jax" else function


def _twice(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin()


_captured = jaxtorch.pure(_twice)


def before_pure(x: torch.Tensor, raises: Any) -> None:
    y = x * 2
    y.register_hook(raises)
    (_captured if x.device.type == "jax" else _twice)(y).sum().backward()


def after_pure(x: torch.Tensor, raises: Any) -> None:
    y = (_captured if x.device.type == "jax" else _twice)(x)
    y.register_hook(raises)
    y.sum().backward()


def around_pure(x: torch.Tensor, raises: Any) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, raises):
        y = (_captured if x.device.type == "jax" else _twice)(x)
        y = y.sin()
    y.sum().backward()


def within_pure(x: torch.Tensor, raises: Any) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(raises)
        return y.sin()

    _pure(body, x)(x).sum().backward()


PLACES: list[Case] = [
    tensor_hook,
    leaf_hook,
    hook_in_grad,
    retained_grad,
    accumulated_hook,
    node_hook,
    node_prehook,
    multi_grad_hook,
    module_hook,
    module_prehook,
    forward_hook,
    pack_hook,
    unpack_hook,
    recomputation,
    reentrant_recomputation,
    backward_within_a_hook,
    end_of_backward,
    with_anomalies_detected,
    on_both_devices,
    before_pure,
    after_pure,
    around_pure,
    within_pure,
]
CASES = [
    *((place, fails) for place in PLACES),
    *((place, raises) for place in PLACES[:19] for raises in (exits, interrupts)),
    *((place, fails_below) for place in (tensor_hook, accumulated_hook, unpack_hook, before_pure)),
    *((place, returns_no_tensor) for place in (tensor_hook, node_prehook, unpack_hook)),
    (function, fails),
]


def outcome(case: Case, raises: Any, device: str) -> tuple[Any, ...]:
    """The error of a case, and the gradient of the next backward pass."""
    torch.manual_seed(0)
    x = torch.arange(1.0, 4.0).to(device).requires_grad_()
    error: tuple[Any, ...] = ()
    try:
        case(x, raises)
    except BaseException as raised:
        error = type(raised), str(raised)
    y = x.detach().clone().requires_grad_()
    (y * 2).sin().sum().backward()
    return *error, *[round(g, 4) for g in y.grad.tolist()]  # type: ignore[union-attr]


def run() -> None:
    for case, raises in CASES:
        expected = outcome(case, raises, "cpu")
        result = outcome(case, raises, "jax")
        verdict = "same" if result == expected and len(expected) > 3 else f"{result} not {expected}"
        print(f"{case.__name__}-{raises.__name__}: {verdict}", flush=True)


if __name__ == "__main__":
    run()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
