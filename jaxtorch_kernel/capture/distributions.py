"""`torch.distributions` in captured code: parameters and samples are not checked.

A check reads values, which a trace does not have. torch.compile switches the checks off as well, for the whole process;
here they are off for distributions that captured code creates or uses, unless they ask for them: with
`validate_args=True` the check raises an error that says so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributions import Distribution

from ..base.replaced import Replaced
from ..programs import tracing

_SCALAR = torch.Size()
_init = Distribution.__init__
_validate_sample = Distribution._validate_sample


def _init_unchecked(
    self: Distribution,
    batch_shape: torch.Size = _SCALAR,
    event_shape: torch.Size = _SCALAR,
    validate_args: bool | None = None,
) -> None:
    if validate_args is None and tracing.active():
        validate_args = False
    _init(self, batch_shape, event_shape, validate_args)


def _sample_unchecked(self: Distribution, value: Any) -> None:
    if "_validate_args" in vars(self) or not tracing.active():
        _validate_sample(self, value)


# In effect while a trace is open; other threads check as before.
unchecked = Replaced(
    (Distribution, "__init__", _init_unchecked),
    (Distribution, "_validate_sample", _sample_unchecked),
)
