"""jaxtorch: PyTorch that runs through XLA, as a torch device named `jax`.

    import torch
    x = torch.randn(100, device="jax")

`import torch` is enough; this package is for the rest: configuration, counters, and (in a notebook)
`%load_ext jaxtorch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .autoload import register as _register

if TYPE_CHECKING:
    from . import debug as debug
    from . import insight as insight
    from .capture.export import export as export
    from .capture.export import from_exported as from_exported
    from .capture.jit import jit as jit
    from .capture.layers import scan_layers as scan_layers
    from .capture.pure import pure as pure
    from .capture.scan import scan as scan
    from .dispatch.stats import compile_count as compile_count
    from .dispatch.stats import fallbacks as fallbacks
    from .interop.call_jax import call_jax as call_jax
    from .interop.call_jax import torch_view as torch_view
    from .interop.jax_view import jax_view as jax_view
    from .interop.optax import optax_optimizer as optax_optimizer
    from .interop.sharding import with_sharding_constraint as with_sharding_constraint
    from .interop.values import to_jax as to_jax
    from .interop.values import to_torch as to_torch
    from .options import config as config

__version__ = "0.1.0"

# `import torch` imports this package for its entry point, so that nothing is imported here that costs time.
_LAZY: dict[str, tuple[str, str | None]] = {
    "config": ("jaxtorch.options", "config"),
    "debug": ("jaxtorch.debug", None),
    "fallbacks": ("jaxtorch.dispatch.stats", "fallbacks"),
    "compile_count": ("jaxtorch.dispatch.stats", "compile_count"),
    "call_jax": ("jaxtorch.interop.call_jax", "call_jax"),
    "torch_view": ("jaxtorch.interop.call_jax", "torch_view"),
    "jax_view": ("jaxtorch.interop.jax_view", "jax_view"),
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
    "with_sharding_constraint": ("jaxtorch.interop.sharding", "with_sharding_constraint"),
}

__all__ = [
    "__version__",
    "call_jax",
    "compile_count",
    "config",
    "debug",
    "export",
    "fallbacks",
    "from_exported",
    "insight",
    "jax_view",
    "jit",
    "optax_optimizer",
    "pure",
    "scan",
    "scan_layers",
    "to_jax",
    "to_torch",
    "torch_view",
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
    """What `%load_ext jaxtorch` runs."""
    from jaxtorch.magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """What `%unload_ext jaxtorch` runs: leaves the session as it was before."""
    from jaxtorch.magics import unload

    unload(shell)


# Where torch's autoload is off (TORCH_DEVICE_BACKEND_AUTOLOAD=0), importing this package registers the device.
_register()
