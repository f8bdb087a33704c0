"""`torch.Generator("jax")`: a generator of the device, also as a program's first use of it.

torch asks the device's hooks for a generator, in C++, and hooks written in Python are not asked. The class itself is
C's and cannot change. Its metaclass is Python's and has no `__call__` of its own, so this module gives it one. This is
the one change to torch that naming the device makes (`registration.py`): every sampler makes its generator first, and
torch would raise before Python is asked for anything.
"""

from __future__ import annotations

import sys
from typing import Any

import torch


def install() -> None:
    """Let the class of `torch.Generator` make generators of the device."""
    type(torch.Generator).__call__ = _call  # type: ignore[method-assign,assignment]


def _call(cls: type, *args: Any, **kwargs: Any) -> object:
    if cls is torch.Generator:
        device = args[0] if args else kwargs.get("device")
        if device is not None and torch.device(device).type == "jax":
            sys.modules["torch.jax"].init()
            from ..operators.generator import JaxGenerator

            return JaxGenerator()
    return type.__call__(cls, *args, **kwargs)
