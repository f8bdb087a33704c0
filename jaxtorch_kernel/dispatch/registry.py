"""The table of kernels over tensors, for operators that cannot be written as functions of arrays.

Most operators have a lowering (`lowerings/registry.py`). Kernels implement the rest: copies between devices, factories
that access the Storage, operators whose result size depends on values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .schema import Kernel

F = TypeVar("F", bound=Kernel)

KERNELS: dict[str, Kernel] = {}


def kernel(*names: str) -> Callable[[F], F]:
    """Register a function of tensors as the device's kernel of these overloads ("copy_", "set_.source_Tensor")."""

    def register(function: F) -> F:
        for name in names:
            full = name if "." in name else f"{name}.default"
            if full in KERNELS:
                raise ValueError(f"{full} has two kernels: {function} and {KERNELS[full]}")
            KERNELS[full] = function
        return function

    return register


ELSEWHERE: dict[str, Kernel] = {}


def kernel_elsewhere(name: str) -> Callable[[F], F]:
    """Register a function of tensors as the device's kernel of another library's operator ("library::name").

    The library need not be there. torch keeps the kernel for the time when the operator is defined.
    """

    def register(function: F) -> F:
        ELSEWHERE[name] = function
        return function

    return register


ABOVE_AUTOGRAD: dict[str, Kernel] = {}
IN_BATCHES: dict[str, Kernel] = {}


def above_autograd(*names: str) -> Callable[[F], F]:
    """Register a function of tensors that runs before autograd, for operators with gradient formulas and a lowering."""

    def register(function: F) -> F:
        ABOVE_AUTOGRAD.update({f"{name}.default": function for name in names})
        return function

    return register


def in_batches(name: str) -> Callable[[F], F]:
    """Register a function of other operators that `torch.vmap` runs for an operator without a batching rule."""

    def register(function: F) -> F:
        IN_BATCHES[f"{name}.default"] = function
        return function

    return register
