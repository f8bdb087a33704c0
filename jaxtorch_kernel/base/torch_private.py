"""The functions through which the code uses torch's private hooks. `torch_hooks.py` has the table of them.

The rest of the code imports the names below. The only private names of torch that it uses directly are attributes of
objects, such as `tensor._base`, which the table lists too. `tests/device/test_private_hooks.py` tests what each hook
does. Nothing here changes torch: `torch_changes.py` does.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch._functorch import pyfunctorch
from torch._subclasses import fake_tensor
from torch.autograd import forward_ad

from .torch_hooks import HOOKS

HOOKS.check()

DEVICE = torch.device("jax", 0)
# Attributes of recurrent layers: lists of their parameters.
LISTS_OF_PARAMETERS = "_flat_weights", "_flat_weight_refs"

pytree = torch.utils._pytree
FakeTensor = fake_tensor.FakeTensor
FakeTensorMode = fake_tensor.FakeTensorMode
CpuGenerator = torch._C.Generator
OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket
create_empty_tensor = torch._C._acc.create_empty_tensor
StorageBase: Any = torch._C.StorageBase
reported_bytes = StorageBase.nbytes  # of the C++ object, see `storage.buffer.wrap`
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
any_autocast = torch._C._is_any_autocast_enabled
swap_implementations: Any = getattr(torch._C, "_swap_tensor_impl", None)
set_conj: Any = torch._C._set_conj
set_neg: Any = torch._C._set_neg
neg_view: Callable[[torch.Tensor], torch.Tensor] = torch._neg_view
suggest_memory_format = torch._prims_common.suggest_memory_format
check_linalg_errors: Any = torch._linalg_check_errors
without_torch_function = torch._C.DisableTorchFunctionSubclass
below_key = torch._C._ExcludeDispatchKeyGuard
is_key_in_tls = torch._C._is_key_in_tls
get_obj_in_tls: Any = torch._C._get_obj_in_tls
stash_obj_in_tls: Any = torch._C._stash_obj_in_tls
fused_attention_enabled: Callable[[], bool] = HOOKS.find(
    "torch._C._get_overrideable_sdp_enabled", instead=lambda: True
)

_CPU = DispatchKey.CPU
_set_storage = HOOKS.find("torch.ops.aten.set_.source_Storage_storage_offset._op_dk")
_construct_storage: Any = torch._C._construct_storage_from_data_pointer

# Addresses beyond the 47 bits of user space, which no allocation can have. Reading one is a fault, never a silent wrong
# value. Two live Storages never share one, and safetensors requires no more of `data_ptr`.
_FIRST_ADDRESS = 0x7A00_0000_0000_0000
_next_address = _FIRST_ADDRESS


def guard_of(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A check of whether tensors have the same class, dispatch keys, dtype, size, stride and `requires_grad`."""
    sizes = [list(t.shape) for t in tensors]
    strides = [list(t.stride()) for t in tensors]
    guards: Any = torch._C._dynamo.guards  # its stub declares another type for the sizes
    guard = guards.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    check: Callable[..., bool] = guard.check
    return check


def make_storage(nbytes: int) -> torch.UntypedStorage:
    """A Storage of the device that reports `nbytes` and a distinct address, and owns no memory."""
    global _next_address
    address = _next_address
    _next_address = address + max(nbytes, 1) + 64 & ~63
    return _construct_storage(address, DEVICE, nbytes)


def put_on_storage(
    tensor: torch.Tensor, storage: torch.UntypedStorage, offset: int, size: Any, stride: Any
) -> torch.Tensor:
    """Give `tensor` this Storage and geometry in place.

    This uses the CPU kernel, which does not touch the data as long as the Storage is large enough. The Meta kernel
    would try to resize the Storage, and the device has no allocator for that.
    """
    _set_storage(_CPU, tensor, storage, offset, size, stride)
    return tensor


def default_device() -> torch.device | None:
    """The last argument of `torch.set_default_device` in this thread. None, unlike the CPU, costs nothing per call."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


_stack_size: Any = torch._C._len_torch_function_stack
_stack_at: Any = torch._C._get_function_stack_at


_only_mode: tuple[Any, tuple[Any, ...]] = (None, ())


def open_modes() -> tuple[Any, ...] | None:
    """The function modes of this thread: default devices as devices, other modes as objects.

    None if there are none: this common case must be fast.
    """
    global _only_mode
    size = _stack_size()
    if not size:
        return None
    if size == 1:  # usually a default device, whose mode rarely changes
        mode = _stack_at(0)
        if mode is not _only_mode[0]:
            _only_mode = mode, (getattr(mode, "device", mode),)
        return _only_mode[1]
    return tuple([getattr(mode, "device", mode) for mode in map(_stack_at, range(size))])


def device_block() -> torch.device | None:
    """The device of the innermost `with torch.device(...)` block that is open in this thread."""
    base = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    blocks = [mode for mode in _device_modes() if mode is not base]
    return blocks[-1].device if blocks else None


def _device_modes() -> list[Any]:
    from torch.utils._device import DeviceContext

    modes = torch.overrides._get_current_function_mode_stack()
    return [mode for mode in modes if isinstance(mode, DeviceContext)]


def default_devices() -> list[torch.device]:
    """The default device of this thread, and those of its `with torch.device(...)` blocks."""
    return [mode.device for mode in _device_modes()]


# The dispatch keys of tensors that the dispatcher replaces by others before it calls a kernel: subclasses and fake
# tensors, batches, lazily conjugated or negated tensors, symbolic zeros. Python's DispatchKey lacks some of the names.
_not_plain: Any = DispatchKeySet(DispatchKey.Python)
for _key in ("Batched", "FuncTorchBatched", "Conjugate", "Negative", "ZeroTensor"):
    _not_plain |= DispatchKeySet(torch._C._dispatch_key_parse(_key))
_NOT_PLAIN: int = _not_plain.raw_repr()  # the bits of these keys
_dispatch_keys: Any = torch._C._dispatch_keys
_interpreters: Any = torch._C._functorch.peek_interpreter_stack
_without_interpreters: Any = pyfunctorch.temporarily_clear_interpreter_stack
_dispatch_modes: Any = torch._C._len_torch_dispatch_stack


_functorch: Any = torch._C._functorch
is_wrapped: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor


def transformed() -> bool:
    """Whether a transform of torch or a mode below autograd is active: it must see the parts of a composite."""
    return _interpreters() is not None or _dispatch_modes() > 0 or _in_forward_mode()


def _in_forward_mode() -> bool:
    return forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled()


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Without the running `torch.func` transforms and forward mode, for tensors that belong to none of them."""
    with ExitStack() as stack:
        if _interpreters() is not None:
            stack.enter_context(_without_interpreters())
        if _in_forward_mode():
            stack.enter_context(forward_ad._set_fwd_grad_enabled(False))
        yield


# The tensor itself if it belongs to a transform that is still running, else the tensor in it.
unwrap_if_dead: Callable[[torch.Tensor], torch.Tensor] = torch._C._functorch.unwrap_if_dead


def records_operators() -> bool:
    """Whether `make_fx` records the operators of torch, as in `torch.func.linearize`."""
    proxy = torch._C._TorchDispatchModeKey.PROXY
    return _dispatch_modes() > 0 and torch._C._get_dispatch_mode(proxy) is not None


def differentiated_or_batched(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether a transform of `torch.func` or a forward-mode derivative may see some of these tensors."""
    forward = _in_forward_mode()
    return any(is_wrapped(t) or (forward and dual_parts(t)[1] is not None) for t in tensors)


def interposed(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether something between autograd and the device must see the parts of a composite."""
    return transformed() or not _are_plain(tensors)


def _are_plain(tensors: Iterable[torch.Tensor]) -> bool:
    for t in tensors:  # noqa: SIM110  # each product asks, and a generator takes a microsecond
        if _dispatch_keys(t).raw_repr() & _NOT_PLAIN:
            return False
    return True


next_sequence_number = torch._C._autograd._get_sequence_nr
_saving_hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks
_keeps_graph: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph
current_autograd_node = torch._C._current_autograd_node


def saving_hooks() -> Any:
    """The innermost `saved_tensors_hooks` of this thread."""
    return _saving_hooks(False)


def keeps_graph() -> bool:
    """Whether the backward pass that is running retains the graph; torch frees saved tensors otherwise."""
    return _keeps_graph()


def sequence_number(node: Any) -> int:
    """The number of graph nodes that torch made in the node's thread before this node."""
    return node._sequence_nr()


def identity(generator: Any) -> int:
    """The identity of a generator's C++ object, whichever Python object wraps it."""
    return int(generator._cdata)


# Makes a tensor over the memory of a DLPack capsule. The public function also queries the owner, which takes 1 µs.
from_capsule: Callable[[Any], torch.Tensor] = torch._C._from_dlpack

# Makes torch raise an error when code requests the memory of this tensor's Storage for writing.
refuse_writes: Callable[[torch.Tensor], None] = torch._C._set_throw_on_mutable_data_ptr

# The address of a tensor's Storage, without a request to write there.
data_address: Callable[[torch.Tensor], int] = HOOKS.find("torch._C._data_address")

# The number of references to the Storage with this `_cdata`: its Python object, and tensors (also in autograd graphs).
users: Callable[[int], int] = torch._C._storage_Use_Count

# The number of function modes that are active in this thread. A `with torch.device(...)` block is one.
function_modes: Callable[[], int] = torch._C._len_torch_function_stack


def is_refused_write(error: RuntimeError) -> bool:
    """Whether an error is due to `refuse_writes`, or is autograd's for a write to a leaf, which is raised earlier."""
    message = str(error)
    return (
        "Cannot access data pointer of Tensor" in message
        or "a leaf Variable that requires grad" in message
    )


is_fake: Callable[[object], bool] = fake_tensor.is_fake


def is_batched(tensor: torch.Tensor) -> bool:
    """Whether a `torch.vmap` that is running made this tensor, or another transform made it of such a tensor."""
    while is_wrapped(tensor):
        if _functorch.is_batchedtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return False


# The metaclass of `autograd.Function`, and the base of the nodes of its calls.
FunctionMeta: Any = torch.autograd.function.FunctionMeta
BackwardCFunction: Any = torch.autograd.function.BackwardCFunction


def over_batch(
    function: Callable[[list[torch.Tensor]], list[torch.Tensor]],
    size: int,
    operands: Sequence[torch.Tensor],
    marked: Sequence[bool],
) -> list[torch.Tensor]:
    """`torch.vmap` over the first axis of the marked operands. The public function spends 50 us on pytrees alone."""
    _load_batch_rules()
    level = _functorch._vmap_increment_nesting(size, "different")
    try:
        batched = [
            _functorch._add_batch_dim(t, 0, level) if m else t
            for t, m in zip(operands, marked, strict=True)
        ]
        return [_functorch._remove_batch_dim(r, level, size, 0) for r in function(batched)]
    finally:
        _functorch._vmap_decrement_nesting()


@functools.cache
def _load_batch_rules() -> None:
    HOOKS.find("torch._functorch.predispatch.lazy_load_decompositions", instead=lambda: None)()


def differentiating(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether the innermost transform takes derivatives (`torch.func.grad`, `vjp`, `jvp`, forward mode), and nothing
    else is between autograd and the device: a gradient formula is then enough for it."""
    interpreter = _interpreters()
    return (
        (interpreter is None or interpreter.key().name in _DERIVATIVES)
        and not _dispatch_modes()
        and _are_plain(tensors)
    )


_DERIVATIVES = ("Grad", "Jvp")  # of torch's TransformType


def dual_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A tensor without its tangent, and the tangent that it has in forward mode."""
    # In a graph of Dynamo, a transform opens the level without Python's knowledge. There is only one level, 0.
    outside = forward_ad._current_level < 0 and _interpreters() is None
    if outside or not torch._C._is_fwd_grad_enabled():
        return tensor, None
    primal, tangent = forward_ad.unpack_dual(tensor, level=0)
    return primal, tangent


# Autograd for nested tensors: it uses torch's gradient formulas of `linear` and `matmul`. Autograd for the device does
# so too, but there the device's function chooses.
_FORMULAS = DispatchKeySet(DispatchKey.AutogradNestedTensor) | DispatchKeySet(
    DispatchKey.PrivateUse1
)
# Below autograd, a transform of torch.func goes on with the one around it, which calls the operator again.
_FORMULAS_IN_TRANSFORM = _FORMULAS | DispatchKeySet(DispatchKey.FuncTorchDynamicLayerBackMode)


def with_gradient_formula(op: OpOverload, *args: object) -> Any:
    """Run an operator whose gradient torch has a formula for, below the function that replaces autograd's."""
    keys = _FORMULAS if _interpreters() is None else _FORMULAS_IN_TRANSFORM
    return op.redispatch(keys, *args)


def overload(name: str) -> Any:
    """ATen's operator of this name ("add.Tensor", "relu"). If this torch lacks it, warn and return None.

    Then jaxtorch does not implement this operator; all others work.
    """
    base, _, variant = name.partition(".")
    return _overload(base, variant or "default")


@functools.cache
def _overload(base: str, variant: str) -> Any:
    try:
        return getattr(getattr(torch.ops.aten, base), variant)
    except AttributeError:
        warnings.warn(
            f"jaxtorch implements the operator aten::{base}.{variant}, which torch {torch.__version__} does not have. "
            "Everything else works; a newer jaxtorch may know its new name.",
            stacklevel=2,
        )
        return None


@functools.cache
def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """torch's definitions of operators by other operators."""
    HOOKS.find("torch._refs")  # its import adds to the table
    table: dict[Any, Callable[..., Any]] = HOOKS.find(
        "torch._decomp.decomposition_table", instead={}
    )
    return table


to_capsule: Callable[[torch.Tensor], Any] = torch._C._to_dlpack
