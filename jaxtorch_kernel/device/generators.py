"""`torch.Generator("jax")`: a generator of the device, even if this call is the program's first use of the device.

torch's C++ gets generators from the device's hooks, but does not call hooks written in Python. The class
`torch.Generator` is written in C and cannot be changed. Its metaclass is a Python class without a `__call__` of its
own, so this module adds one. This is the only change to torch that naming the device makes (`registration.py`). It
cannot wait for the first use of the device: a sampler makes its generator first, and torch would raise an error before
it calls any Python code of the device.
"""

from __future__ import annotations

import sys
from typing import Any

import torch


def install() -> None:
    """Make `torch.Generator(...)` create generators of the device."""
    type(torch.Generator).__call__ = _call  # type: ignore[method-assign,assignment]


def _call(cls: type, *args: Any, **kwargs: Any) -> object:
    if cls is torch.Generator:
        device = args[0] if args else kwargs.get("device")
        if device is not None and torch.device(device).type == "jax":
            sys.modules["torch.jax"].init()
            from ..operators.generator import JaxGenerator

            return JaxGenerator()
    return type.__call__(cls, *args, **kwargs)
