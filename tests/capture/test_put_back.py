"""Code that changes something outside itself for a while, and puts it back: it is traced once, and is right."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from jaxtorch.programs import stats

from .doors import DOORS
from .doors import captured as captured

Tensor = torch.Tensor
Program = Callable[[Tensor], Tensor]

collected: contextvars.ContextVar[list[Tensor] | None] = contextvars.ContextVar(
    "collected", default=None
)
_net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))


class Settings:
    """What the programs change."""

    def __init__(self) -> None:
        self.scale = 2.0
        self.log: list[Tensor] | None = None
        self.function = torch.sin


def a_hook(net: nn.Sequential, settings: Settings) -> Program:
    def f(x: Tensor) -> Tensor:
        outputs: dict[str, Tensor] = {}
        handle = net[0].register_forward_hook(lambda m, a, o: outputs.__setitem__("first", o))
        y = net(x)
        handle.remove()
        return y + outputs["first"]

    return f


def hooks(net: nn.Sequential, settings: Settings) -> Program:
    def f(x: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        handles = [m.register_forward_hook(lambda m, a, o: outputs.append(o)) for m in net]
        y = net(x)
        for handle in handles:
            handle.remove()
        return y + sum(outputs)

    return f


def a_hook_that_changes_a_value(net: nn.Sequential, settings: Settings) -> Program:
    def f(x: Tensor) -> Tensor:
        handle = net[1].register_forward_pre_hook(lambda m, a: (a[0] * settings.scale,))
        try:
            return net(x)
        finally:
            handle.remove()

    return f


def a_context_manager(net: nn.Sequential, settings: Settings) -> Program:
    @contextlib.contextmanager
    def scaled(by: float) -> Iterator[None]:
        before, settings.scale = settings.scale, by
        try:
            yield
        finally:
            settings.scale = before

    def f(x: Tensor) -> Tensor:
        with scaled(3.0), scaled(settings.scale * 2):
            y = net(x) * settings.scale
        return y * settings.scale

    return f


def a_patched_attribute(net: nn.Sequential, settings: Settings) -> Program:
    def f(x: Tensor) -> Tensor:
        with mock.patch.object(settings, "scale", 5.0):
            y = x * settings.scale
        return y * settings.scale

    return f


def a_patched_function(net: nn.Sequential, settings: Settings) -> Program:
    def f(x: Tensor) -> Tensor:
        with mock.patch.object(settings, "function", torch.cos):
            y = settings.function(x)
        return y + settings.function(x)

    return f


def a_patched_method(net: nn.Sequential, settings: Settings) -> Program:
    def f(x: Tensor) -> Tensor:
        with mock.patch.object(net[1], "forward", lambda x: x * 2):
            y = net(x)
        return y + net(x)

    return f


def another_submodule(net: nn.Sequential, settings: Settings) -> Program:
    def f(x: Tensor) -> Tensor:
        before, net[1] = net[1], nn.Identity()
        y = net(x)
        net[1] = before
        return y + net(x)

    return f


def a_new_submodule(net: nn.Sequential, settings: Settings) -> Program:
    def f(x: Tensor) -> Tensor:
        net.extra = nn.Identity()
        y = net.extra(x)
        del net.extra
        return y

    return f


def a_function(net: nn.Sequential, settings: Settings) -> Program:
    def f(x: Tensor) -> Tensor:
        before, settings.function = settings.function, lambda y: y * x.sum()
        y = settings.function(x)
        settings.function = before
        return y + settings.function(x)

    return f


def a_list_in_an_attribute(net: nn.Sequential, settings: Settings) -> Program:
    def layer(x: Tensor) -> Tensor:
        if settings.log is not None:
            settings.log.append(x)
        return x.sin()

    def f(x: Tensor) -> Tensor:
        settings.log = log = []
        y = layer(layer(x))
        settings.log = None
        return y + log[1]

    return f


def a_list_in_a_context_variable(net: nn.Sequential, settings: Settings) -> Program:
    def layer(x: Tensor) -> Tensor:
        log = collected.get()
        if log is not None:
            log.append(x)
        return x.sin()

    def f(x: Tensor) -> Tensor:
        log: list[Tensor] = []
        token = collected.set(log)
        y = layer(layer(x))
        collected.reset(token)
        return y + log[1]

    return f


def an_object_that_existed_before(net: nn.Sequential, settings: Settings) -> Program:
    current = types.SimpleNamespace(settings=None)

    def scaled(x: Tensor) -> Tensor:
        return x * current.settings.scale

    def f(x: Tensor) -> Tensor:
        current.settings = settings
        y = scaled(x)
        current.settings = None
        return y

    return f


PROGRAMS: list[Callable[[nn.Sequential, Settings], Program]] = [
    a_hook,
    hooks,
    a_hook_that_changes_a_value,
    a_context_manager,
    a_patched_attribute,
    a_patched_function,
    a_patched_method,
    another_submodule,
    a_new_submodule,
    a_function,
    a_list_in_an_attribute,
    a_list_in_a_context_variable,
    an_object_that_existed_before,
]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("captured", [d for d in DOORS if d != "torch.compile"], indirect=True)
def test_what_is_put_back_is_no_dependency(captured: Any, program: Any) -> None:
    theirs, mine = Settings(), Settings()
    expected = program(_net, theirs)
    net = copy.deepcopy(_net).to("jax")
    run = captured(program(net, mine))
    programs = []
    for i, scale in enumerate((2.0, 2.0, 2.0, 3.0)):
        theirs.scale = mine.scale = scale
        x = torch.arange(3.0) + i
        with torch.no_grad():
            torch.testing.assert_close(run(x.to("jax")).cpu(), expected(x))
        assert vars(mine) == vars(theirs)
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in net)
        programs.append(len(stats.compiled))
    assert programs[1] == programs[2]
