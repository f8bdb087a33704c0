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
    from torch.distributed.tensor import Replicate as Replicate
    from torch.distributed.tensor import Shard as Shard

    from . import debug as debug
    from . import distributed as distributed
    from . import insight as insight
    from .base.options import config as config
    from .capture.errors import CaptureError as CaptureError
    from .capture.export import export as export
    from .capture.export import from_exported as from_exported
    from .capture.jax_view import jax_view as jax_view
    from .capture.jit import jit as jit
    from .capture.layers import scan_layers as scan_layers
    from .capture.pure import pure as pure
    from .capture.scan import scan as scan
    from .capture.stacked import stack_layers as stack_layers
    from .capture.target import target as target
    from .capture.tpu import CompileError as CompileError
    from .capture.tpu_chips import targets as targets
    from .insight.fit.report import fit as fit
    from .insight.plan import plan as plan
    from .interop.call_jax import call_jax as call_jax
    from .interop.call_jax import torch_view as torch_view
    from .interop.optax import optax_optimizer as optax_optimizer
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
    from .parallel.checkpoints import restore_checkpoint as restore_checkpoint
    from .parallel.checkpoints import save_checkpoint as save_checkpoint
    from .parallel.constraint import with_sharding_constraint as with_sharding_constraint
    from .parallel.gather import from_local as from_local
    from .parallel.gather import gather as gather
    from .parallel.layouts import sharding_of as sharding_of
    from .parallel.meshes import init_device_mesh as init_device_mesh
    from .parallel.meshes import mesh as mesh
    from .parallel.sharding import distribute_tensor as distribute_tensor
    from .parallel.sharding import replicate as replicate
    from .parallel.sharding import reshard as reshard
    from .parallel.sharding import shard as shard
    from .parallel.strategies import data_parallel as data_parallel
    from .parallel.strategies import fsdp as fsdp
    from .parallel.strategies import fully_shard as fully_shard
    from .parallel.strategies import tensor_parallel as tensor_parallel
    from .programs.stats import compile_count as compile_count
    from .programs.stats import fallbacks as fallbacks

# Where each public name is defined; for type checkers the block above says the same. They are imported when they are
# first used: `import torch` imports this package for its entry point, and must not import jax.
_HOMES = {
    ".": ("debug", "distributed", "insight"),
    ".base.options": ("config",),
    ".capture.errors": ("CaptureError",),
    ".capture.export": ("export", "from_exported"),
    ".capture.jax_view": ("jax_view",),
    ".capture.jit": ("jit",),
    ".capture.layers": ("scan_layers",),
    ".capture.pure": ("pure",),
    ".capture.scan": ("scan",),
    ".capture.stacked": ("stack_layers",),
    ".capture.target": ("target",),
    ".capture.tpu": ("CompileError",),
    ".capture.tpu_chips": ("targets",),
    ".insight.fit.report": ("fit",),
    ".insight.plan": ("plan",),
    ".interop.call_jax": ("call_jax", "torch_view"),
    ".interop.optax": ("optax_optimizer",),
    ".interop.torch_call.convert": ("dtype_j2t", "dtype_t2j", "j2t", "t2j", "tree_j2t", "tree_t2j"),
    ".interop.torch_call.module": ("module_to_jax",),
    ".interop.torch_call.running": ("TorchCallError",),
    ".interop.torch_call.torch2jax": (
        "torch2jax",
        "torch2jax_auto",
        "torch2jax_with_vjp",
        "torch2jax_without_vjp",
    ),
    ".interop.values": ("to_jax", "to_torch"),
    ".parallel.checkpoints": ("restore_checkpoint", "save_checkpoint"),
    ".parallel.constraint": ("with_sharding_constraint",),
    ".parallel.gather": ("from_local", "gather"),
    ".parallel.layouts": ("sharding_of",),
    ".parallel.meshes": ("init_device_mesh", "mesh"),
    ".parallel.sharding": ("distribute_tensor", "replicate", "reshard", "shard"),
    ".parallel.strategies": ("data_parallel", "fsdp", "fully_shard", "tensor_parallel"),
    ".programs.stats": ("compile_count", "fallbacks"),
    "torch": ("Size",),
    "torch.distributed.tensor": ("Replicate", "Shard"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]  # strings, though computed


def __getattr__(name: str) -> Any:
    import importlib

    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'jaxtorch' has no attribute {name!r}")
    if home == ".":
        return importlib.import_module(f".{name}", __name__)
    value = getattr(importlib.import_module(home, __name__), name)
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
