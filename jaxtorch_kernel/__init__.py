"""jaxtorch: PyTorch that runs through XLA, as a torch device named `jax`.

    import torch
    x = torch.randn(100, device="jax")

`import torch` is enough to use the device. Import this package for configuration, counters and, in a notebook,
`%load_ext jaxtorch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .autoload import register as _register
from .base.version import __version__

if TYPE_CHECKING:
    from torch import Size as Size

    from . import debug as debug
    from . import insight as insight
    from .base.options import config as config
    from .capture.export import export as export
    from .capture.export import from_exported as from_exported
    from .capture.jax_view import jax_view as jax_view
    from .capture.jit import jit as jit
    from .capture.layers import scan_layers as scan_layers
    from .capture.pure import pure as pure
    from .capture.scan import scan as scan
    from .interop.call_jax import call_jax as call_jax
    from .interop.call_jax import torch_view as torch_view
    from .interop.optax import optax_optimizer as optax_optimizer
    from .interop.sharding import with_sharding_constraint as with_sharding_constraint
    from .interop.torch_call.convert import dtype_j2t as dtype_j2t
    from .interop.torch_call.convert import dtype_t2j as dtype_t2j
    from .interop.torch_call.convert import j2t as j2t
    from .interop.torch_call.convert import t2j as t2j
    from .interop.torch_call.convert import tree_j2t as tree_j2t
    from .interop.torch_call.convert import tree_t2j as tree_t2j
    from .interop.torch_call.module import module_to_jax as module_to_jax
    from .interop.torch_call.running import TorchCallError as TorchCallError
    from .interop.torch_call.torch2jax import torch2jax as torch2jax
    from .interop.torch_call.torch2jax import torch2jax_auto as torch2jax_auto
    from .interop.torch_call.torch2jax import torch2jax_with_vjp as torch2jax_with_vjp
    from .interop.torch_call.torch2jax import torch2jax_without_vjp as torch2jax_without_vjp
    from .interop.values import to_jax as to_jax
    from .interop.values import to_torch as to_torch
    from .programs.stats import compile_count as compile_count
    from .programs.stats import fallbacks as fallbacks

# `import torch` imports this package for its entry point, so that nothing is imported here that costs time.
_LAZY: dict[str, tuple[str, str | None]] = {
    "config": ("jaxtorch.base.options", "config"),
    "debug": ("jaxtorch.debug", None),
    "fallbacks": ("jaxtorch.programs.stats", "fallbacks"),
    "compile_count": ("jaxtorch.programs.stats", "compile_count"),
    "call_jax": ("jaxtorch.interop.call_jax", "call_jax"),
    "torch_view": ("jaxtorch.interop.call_jax", "torch_view"),
    "jax_view": ("jaxtorch.capture.jax_view", "jax_view"),
    "optax_optimizer": ("jaxtorch.interop.optax", "optax_optimizer"),
    "to_jax": ("jaxtorch.interop.values", "to_jax"),
    "to_torch": ("jaxtorch.interop.values", "to_torch"),
    "export": ("jaxtorch.capture.export", "export"),
    "from_exported": ("jaxtorch.capture.export", "from_exported"),
    "insight": ("jaxtorch.insight", None),
    "pure": ("jaxtorch.capture.pure", "pure"),
    "jit": ("jaxtorch.capture.jit", "jit"),
    "scan": ("jaxtorch.capture.scan", "scan"),
    "scan_layers": ("jaxtorch.capture.layers", "scan_layers"),
    "dtype_j2t": ("jaxtorch.interop.torch_call.convert", "dtype_j2t"),
    "dtype_t2j": ("jaxtorch.interop.torch_call.convert", "dtype_t2j"),
    "j2t": ("jaxtorch.interop.torch_call.convert", "j2t"),
    "t2j": ("jaxtorch.interop.torch_call.convert", "t2j"),
    "tree_j2t": ("jaxtorch.interop.torch_call.convert", "tree_j2t"),
    "tree_t2j": ("jaxtorch.interop.torch_call.convert", "tree_t2j"),
    "module_to_jax": ("jaxtorch.interop.torch_call.module", "module_to_jax"),
    "TorchCallError": ("jaxtorch.interop.torch_call.running", "TorchCallError"),
    "torch2jax": ("jaxtorch.interop.torch_call.torch2jax", "torch2jax"),
    "torch2jax_auto": ("jaxtorch.interop.torch_call.torch2jax", "torch2jax_auto"),
    "torch2jax_with_vjp": ("jaxtorch.interop.torch_call.torch2jax", "torch2jax_with_vjp"),
    "torch2jax_without_vjp": ("jaxtorch.interop.torch_call.torch2jax", "torch2jax_without_vjp"),
    "Size": ("torch", "Size"),
    "with_sharding_constraint": ("jaxtorch.interop.sharding", "with_sharding_constraint"),
}

__all__ = [
    "Size",
    "TorchCallError",
    "__version__",
    "call_jax",
    "compile_count",
    "config",
    "debug",
    "dtype_j2t",
    "dtype_t2j",
    "export",
    "fallbacks",
    "from_exported",
    "insight",
    "j2t",
    "jax_view",
    "jit",
    "module_to_jax",
    "optax_optimizer",
    "pure",
    "scan",
    "scan_layers",
    "t2j",
    "to_jax",
    "to_torch",
    "torch2jax",
    "torch2jax_auto",
    "torch2jax_with_vjp",
    "torch2jax_without_vjp",
    "torch_view",
    "tree_j2t",
    "tree_t2j",
    "with_sharding_constraint",
]


def __getattr__(name: str) -> Any:
    import importlib

    try:
        module, attribute = _LAZY[name]
    except KeyError:
        raise AttributeError(f"module 'jaxtorch' has no attribute {name!r}") from None
    found = importlib.import_module(module)
    value = found if attribute is None else getattr(found, attribute)
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext jaxtorch`."""
    from jaxtorch.magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Called by `%unload_ext jaxtorch`: restores the previous state of the session."""
    from jaxtorch.magics import unload

    unload(shell)


# Where torch's autoload is off (TORCH_DEVICE_BACKEND_AUTOLOAD=0), importing this package registers the device.
_register()
