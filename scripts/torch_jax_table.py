"""The table of `torch.cuda` and `torch.jax` in the documentation, made from both modules.

python -m scripts.torch_jax_table     # writes docs/reference/torch_jax.md
"""

from __future__ import annotations

import inspect
from pathlib import Path

import torch

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "torch_jax.md"

# The names that `torch.jax` lacks, with the reason or the alternative.
REASONS = {
    "deprecated in torch": "max_memory_cached memory_cached reset_max_memory_cached",
    'pass `device="jax"` and `dtype=` (these constructors are from before torch 0.4)': """
        BFloat16Tensor BoolTensor ByteTensor CharTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor
        ShortTensor BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage ComplexFloatStorage
        DoubleStorage FloatStorage HalfStorage IntStorage LongStorage ShortStorage
    """,
    "[`jaxtorch.jit`](capture.md), `%%jit`: a whole step as one program": """
        CUDAGraph export_dot export_graph_data graph graph_annotations graph_pool_handle graphs
        is_current_stream_capturing make_graphed_callables
    """,
    "XLA's allocator: `XLA_PYTHON_CLIENT_MEM_FRACTION`, `XLA_PYTHON_CLIENT_ALLOCATOR`": """
        CUDAPluggableAllocator MemPool caching_allocator_alloc caching_allocator_delete caching_allocator_disabled
        caching_allocator_enable change_current_allocator get_allocator_backend get_per_process_memory_fraction
        set_per_process_memory_fraction use_mem_pool
    """,
    "host memory is not pinned": """
        host_memory_stats host_memory_stats_as_nested_dict reset_accumulated_host_memory_stats
        reset_peak_host_memory_stats
    """,
    "JAX does not report it": """
        clock_rate list_gpu_processes memory_usage power_draw temperature utilization
    """,
    "there is one stream": "ExternalStream GreenContext get_stream_from_external",
    "CUDA's own interface": """
        CudaError DeferredCudaCallError check_error cudaStatus cudart current_blas_handle current_solver_handle
        get_arch_list get_gencode_flags gds green_contexts has_half has_magma
    """,
    "`jaxtorch.config(matmul_precision=...)`": "is_tf32_supported",
    "JAX's collectives: [`with_sharding_constraint`](interop.md)": "nccl",
    "[`call_jax`](interop.md) with a Pallas kernel": "jiterator",
    "`%%jax profile`, `jax.named_scope`": "nvtx profiler",
    "XLA tunes its own programs": "tunable",
    "sparse tensors do not exist in XLA": "sparse",
    '`torch.jax.get_rng_state`, `torch.Generator("jax")`': "default_generators",
    "`jax.transfer_guard`": "get_sync_debug_mode set_sync_debug_mode",
}
_REASON_OF = {name: reason for reason, names in REASONS.items() for name in names.split()}

_BEFORE = """# `torch.cuda` and `torch.jax`

Every public name of `torch.cuda`, and what `torch.jax` has for it. "The same" means the same name, called the same way.
Written by `python -m scripts.torch_jax_table` from both modules; a test compares it with them. Later versions of torch
may have more names.

## One device to torch

torch sees one device, `jax:0`, however many devices JAX has. So `torch.jax.device_count()` is 1,
`torch.jax.current_device()` is 0, and a tensor's `device.index` is 0: these are torch's indices. The functions that
take a device (`torch.jax.device(i)`, `set_device`, `memory_allocated(i)`, `get_device_properties(i)` and so on) take
JAX's indices, those of `jax.local_devices()`: `torch.jax.device(1)` places new arrays on JAX's second device, and torch
still calls them `jax:0`. An array may also be sharded over several devices ([`with_sharding_constraint`](interop.md)).

`torch.device("jax:1")` holds no tensor: PyTorch gives a backend that is written in Python a single device. Scripts that
keep a copy of the model on each device (`DataParallel`) find one device and use it; data parallelism here is sharding.

"""


def public_names() -> list[str]:
    """The public names of `torch.cuda`."""
    return sorted({*torch.cuda.__all__, "OutOfMemoryError"}, key=lambda name: (name.lower(), name))


def kind(value: object) -> str:
    if inspect.ismodule(value):
        return "module"
    return "class" if inspect.isclass(value) else "function" if callable(value) else "value"


def answer(name: str) -> str:
    """The entry of `torch.jax` for a name of `torch.cuda`.

    Raises:
        KeyError: there is neither an equivalent nor a reason above.
    """
    return "the same" if name in torch.jax.__all__ else f"no: {_REASON_OF[name]}"


def text() -> str:
    """The page."""
    lines = ["## Name by name", "", "| `torch.cuda` | kind | `torch.jax` |", "| --- | --- | --- |"]
    for name in public_names():
        lines.append(f"| `{name}` | {kind(getattr(torch.cuda, name))} | {answer(name)} |")
    more = ", ".join(f"`{n}`" for n in sorted(set(torch.jax.__all__) - set(public_names())))
    lines += ["", f"`torch.jax` alone has {more}."]
    return _BEFORE + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), "utf-8")
