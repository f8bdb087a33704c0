"""The private hooks of torch that name the device. `import torch` imports this module, but not `torch_private.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import backend_registration

from .torch_hooks import HOOKS

HOOKS.check()

setup_backend: Any = backend_registration._setup_privateuseone_for_python_backend
backend_name = torch._C._get_privateuse1_backend_name
DeviceType = torch._C._autograd.DeviceType
PrivateUse1Hooks = torch._C._acc.PrivateUse1Hooks
DeviceGuard = torch._C._acc.DeviceGuard
create_empty_tensor = torch._C._acc.create_empty_tensor
