"""Changes to torch through private hooks: functions for torch to call, and code for Dynamo to skip.

Each function makes one change for the whole process; `compiling` is a temporary one. The hooks that only read or call
are in `torch_private.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType
from typing import Any, ParamSpec, TypeVar

import torch
from torch._C import DispatchKey

from .replaced import Replaced
from .torch_hooks import HOOKS
from .torch_private import is_fake, pytree

P = ParamSpec("P")
T = TypeVar("T")

# Held while code is captured: torch's optimizers and many models then avoid reading values.
_FLAG = "torch.compiler._is_compiling_flag"
_flag = () if HOOKS.find(_FLAG) is None else ((torch.compiler, "_is_compiling_flag", True),)
compiling = Replaced(*_flag)

# torch keeps Dynamo out of some functions by a decorator, which calls this attribute of the function if there is one.
_CALLED_INSTEAD = "__dynamo_disable"


def hide_from_dynamo(package: str) -> None:
    """Make Dynamo skip a package's functions when compiled code calls them."""
    HOOKS.find("torch._dynamo.trace_rules.add", instead=lambda package: None)(package)


def not_opaque(cls: type) -> None:
    """Make Dynamo end the graph where it meets an instance of `cls`, a subclass of `torch.Generator`.

    Dynamo does this for `torch.Generator` itself. It would treat an instance of a subclass as an opaque object and
    replace it by a fake one, and fake generators draw nothing.
    """
    opaque = HOOKS.find("torch._library.opaque_object._OPAQUE_TYPES", instead={})
    # This name is not registered, so torch finds that the class is not opaque.
    if torch.Generator in opaque:
        base = opaque[torch.Generator]
        opaque[cls] = dataclasses.replace(base, class_name=f"{cls.__name__} (not opaque)")


def run_without_dynamo(codes: Iterable[CodeType]) -> None:
    """Make Dynamo run these functions, and all functions that they call, without compiling them.

    Between the graphs of a compiled function, Dynamo examines every Python function that is called, even by C++. This
    includes the device's kernels, which are Python functions, unlike torch's.
    """
    frames = HOOKS.find("torch._C._dynamo.eval_frame")
    for code in codes if frames is not None else ():
        # A separate object for each function, because torch reads it later.
        strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        frames.set_code_exec_strategy(code, strategy)


def refuse_in_dynamo(function: Callable[..., object], reason: str) -> None:
    """Make Dynamo end its graph at a call of this function; where there must be one graph, it states the reason.

    `torch.compiler.disable` does this with a wrapper, which would cost at each call.
    """
    vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=reason)


def refuse_inductor(message: str) -> None:
    """Make `torch.compile` with its default backend raise an error for a graph with tensors of the device."""
    theirs = HOOKS.find("torch._TorchCompileInductorWrapper.__call__")
    if theirs is None:
        return

    @functools.wraps(theirs)
    def call(self: Any, graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        values = _tensors([n.meta.get("example_value") for n in graph.graph.nodes])
        if any(value.device.type == "jax" for value in values):
            raise RuntimeError(message)
        return theirs(self, graph, inputs, **options)

    torch._TorchCompileInductorWrapper.__call__ = call  # type: ignore[assignment, method-assign]  # torch has no hook for its default backend


def implement_higher_order(name: str, kernel: Callable[..., Any]) -> None:
    """Make `kernel` the higher-order operator's kernel for tensors of the device, both above and below autograd.

    Tensors without data, by which Dynamo computes shapes, stay torch's own business.
    """
    operator = getattr(torch.ops.higher_order, name)
    theirs = operator.py_kernels.get(DispatchKey.Autograd)

    def above_autograd(*args: object, **kwargs: object) -> object:
        if theirs is not None and any(map(is_fake, _tensors((args, kwargs)))):
            return theirs(*args, **kwargs)
        return kernel(*args, **kwargs)

    operator.py_impl(DispatchKey.AutogradPrivateUse1)(above_autograd)
    operator.py_impl(DispatchKey.PrivateUse1)(kernel)


def _tensors(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def implement_in_transforms(name: str, kernel: Callable[..., object]) -> None:
    """Make `kernel` the higher-order operator's rule for tensors of the device in transforms of `torch.func`.

    torch's own rules, where there are any, expect operands as Dynamo arranges them.
    """
    rules = getattr(torch.ops.higher_order, name).functorch_table
    kinds: Any = torch._C._functorch.TransformType
    for kind in (kinds.Vmap, kinds.Grad, kinds.Jvp):
        rules[kind] = _rule(rules.get(kind), kind, kernel)


def _rule(
    theirs: Callable[..., object] | None, kind: object, ours: Callable[..., object]
) -> Callable[..., object]:
    def rule(interpreter: object, *args: object) -> object:
        tensors = _tensors(args)
        if any(t.device.type == "jax" for t in tensors) and not any(map(is_fake, tensors)):
            return ours(*args)
        if theirs is None:
            raise KeyError(kind)  # as torch's own table
        return theirs(interpreter, *args)

    return rule


def call_higher_order_directly() -> None:
    """Make `torch.cond` and similar functions call their operator directly on tensors of the device.

    torch would compile the call with Dynamo first. Dynamo cannot handle tensors of a trace, and is not needed here.
    """
    theirs = HOOKS.find("torch._higher_order_ops.utils._hop_compile_and_call")
    if theirs is None:
        return

    def call(fn: Any, args: Any, kwargs: Any = None) -> Any:
        if any(tensor.device.type == "jax" for tensor in _tensors((args, kwargs))):
            return fn(*args, **(kwargs or {}))
        return theirs(fn, args, kwargs)

    torch._higher_order_ops.utils._hop_compile_and_call = call


def checkpoint_by(ours: Callable[..., Any], wanted: Callable[[], bool]) -> None:
    """Make `torch.utils.checkpoint.checkpoint` call `ours` while `wanted()`, under any name it was imported by.

    The function is decorated so that Dynamo does not look into it; this sets what the decorator calls.
    """
    function = HOOKS.find("torch.utils.checkpoint.checkpoint.__wrapped__")  # set by a decorator
    if function is None:
        return
    theirs = getattr(function, _CALLED_INSTEAD, None) or _without_dynamo(function)

    def call(*args: object, **kwargs: object) -> object:
        return (ours if wanted() else theirs)(*args, **kwargs)

    setattr(function, _CALLED_INSTEAD, call)


def run_metas_without_dynamo() -> None:
    """Let torch's Meta functions run without an import of Dynamo, until somebody else imports it.

    Many of them are decorated so that Dynamo does not look into them. A decorated function imports Dynamo at its first
    call, which takes longer than all else that a first operator does.
    """
    decorator = HOOKS.find("torch._disable_dynamo")
    tables = HOOKS.find("torch._decomp.global_decomposition_table", instead={})
    if decorator is None:
        return
    for function in _with_what_they_wrap(f for table in tables.values() for f in table.values()):
        if function.__code__.co_filename == decorator.__code__.co_filename:
            # A torch with another decorator keeps its import.
            decorated = inspect.getclosurevars(function).nonlocals.get("fn")
            if isinstance(decorated, FunctionType):
                call = _without_dynamo(decorated)
                refuse_in_dynamo(call, "torch keeps Dynamo out of this function")
                vars(decorated).setdefault(_CALLED_INSTEAD, call)


def _with_what_they_wrap(functions: Iterable[object]) -> set[FunctionType]:
    """These functions, and those that a decorator wrapped, which are variables around its wrapper."""
    found: set[FunctionType] = set()
    waiting = list(functions)
    while waiting:
        function = waiting.pop()
        if isinstance(function, FunctionType) and function not in found:
            found.add(function)
            waiting += gc.get_referents(*function.__closure__ or ())  # of an empty cell, nothing
    return found


def _without_dynamo(function: Callable[P, T]) -> Callable[P, T]:
    """The function, with Dynamo kept out of it. Where Dynamo has not been imported, nothing is to be kept out."""
    disabled: Callable[P, T] | None = None

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        nonlocal disabled
        if disabled is None:
            if "torch._dynamo" not in sys.modules:
                return function(*args, **kwargs)
            disable = HOOKS.find(
                "torch._dynamo.disable", instead=lambda function, *_, **__: function
            )
            disabled = disable(function, True, wrapping=False)
        return disabled(*args, **kwargs)

    return call


def answer_for_accelerator(answers: Mapping[str, Any]) -> None:
    """Replace functions of `torch._C` that `torch.accelerator` looks up by name at each call."""
    for name, answer in answers.items():
        if HOOKS.find(f"torch._C.{name}") is not None:
            setattr(torch._C, name, answer)


def provide_copies(functions: Mapping[str, Callable[..., object]]) -> None:
    """Give `torch._C` functions that only builds for cuda have, and replace those where there is no cuda device."""
    for name, ours in functions.items():
        theirs = getattr(torch._C, name, ours)
        setattr(torch._C, name, _on_cuda(theirs, ours))


def _on_cuda(theirs: Callable[..., object], ours: Callable[..., object]) -> Callable[..., object]:
    """A function that calls torch's own where there is a cuda device."""

    def call(*args: object) -> object:
        return theirs(*args) if torch.cuda.is_available() else ours(*args)

    return call


# torch's function that decides where `torch.load` puts tensors; None if this torch has no such function.
restore_location: Any = HOOKS.find("torch.serialization._get_restore_location")


def restore_by(function: Any) -> None:
    """Make `torch.load` call this function to decide where to put tensors."""
    if restore_location is not None:
        torch.serialization._get_restore_location = function
