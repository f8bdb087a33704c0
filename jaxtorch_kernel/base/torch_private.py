"""All private hooks of torch that the device relies on, and nothing else.

Only this file, `device/registration.py` and `device/guard.py` use torch's private API. Each hook is looked up once,
by name. If torch lacks one, the import fails here with a message that names it (`check`), and not later in an
unrelated place. `tests/device/test_private_hooks.py` pins what each hook does.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import CodeType
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch.autograd import forward_ad

from .replaced import Replaced
from .version import supported

_HOOKS = {
    "torch._C._acc.create_empty_tensor": "creates a tensor on the device",
    "torch._C._construct_storage_from_data_pointer": "creates a Storage of a given size",
    "torch.ops.aten.as_strided.default._op_dk": "runs one operator's kernel of a given dispatch key",
    "torch._C._set_conj": "makes a tensor lazily conjugated",
    "torch._C._set_neg": "makes a tensor lazily negated",
    "torch.utils.backend_registration._setup_privateuseone_for_python_backend": "names the device",
    "torch._C._dispatch_has_kernel_for_dispatch_key": "lists the kernels of an operator",
    "torch._C._dispatch_keys": "reports the dispatch keys of a tensor",
    "torch._C._dispatch_key_parse": "finds a dispatch key by name",
    "torch._C._functorch.is_functorch_wrapped_tensor": "recognizes tensors of a `torch.func` transform",
    "torch._C._functorch.peek_interpreter_stack": "reports whether a `torch.func` transform is running",
    "torch._C._functorch._vmap_increment_nesting": "opens a level of `torch.vmap`",
    "torch._functorch.predispatch.lazy_load_decompositions": "lets `torch.vmap` decompose operators without a rule",
    "torch._C._len_torch_dispatch_stack": "reports whether a dispatch mode is active",
    "torch._library.opaque_object._OPAQUE_TYPES": "lists the objects that are opaque to Dynamo",
    "torch.autograd.forward_ad._current_level": "reports whether forward-mode AD is active",
    "torch._C._dynamo.guards.TensorGuards": "compares tensors with those of an earlier call",
    "torch._C._is_any_autocast_enabled": "reports whether autocast is active for any device",
    "torch._C._autograd._get_sequence_nr": "numbers the nodes of a backward pass",
    "torch._C._autograd._top_saved_tensors_default_hooks": "reports whether saved-tensor hooks are active",
    "torch._C._current_autograd_node": "returns the node that a backward pass is running",
    "torch.compiler._is_compiling_flag": "makes `torch.compiler.is_compiling()` true inside captured code",
    "torch._GLOBAL_DEVICE_CONTEXT": "holds what `torch.set_default_device` set",
    "torch.overrides._get_current_function_mode_stack": "reports whether a `with torch.device` block is open",
    "torch._higher_order_ops.utils._hop_compile_and_call": "is how an eager `torch.cond` reaches its operator",
    "torch._prims_common.suggest_memory_format": "reports whether a tensor is in channels-last format",
    "torch.serialization._get_restore_location": "decides where `torch.load` puts tensors",
}


def _resolve(path: str) -> Any:
    # `getattr` of getattr: submodules below `torch._C` are attributes, not importable modules.
    found: Any = torch
    for part in path.split(".")[1:]:
        found = getattr(found, part)
    return found


def check() -> None:
    """Raise one clear `ImportError` when this torch lacks a hook that the device needs."""
    import torch.autograd.forward_ad
    import torch.utils.backend_registration

    for path, purpose in _HOOKS.items():
        try:
            _resolve(path)
        except AttributeError:
            raise ImportError(
                f"jaxtorch needs torch's private hook `{path}` ({purpose}), which torch "
                f"{torch.__version__} does not have. Install a supported version: "
                f"pip install '{supported('torch')}'."
            ) from None


check()

DEVICE = torch.device("jax", 0)

create_empty_tensor = torch._C._acc.create_empty_tensor
reported_bytes: Any = torch._C.StorageBase.nbytes  # type: ignore[attr-defined]  # of the C++ object, see `storage.buffer.wrap`
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
any_autocast = torch._C._is_any_autocast_enabled
set_conj: Any = torch._C._set_conj
set_neg: Any = torch._C._set_neg
suggest_memory_format = torch._prims_common.suggest_memory_format

_META = DispatchKey.Meta
_CPU = DispatchKey.CPU
_as_strided = torch.ops.aten.as_strided.default._op_dk
_set_storage = torch.ops.aten.set_.source_Storage_storage_offset._op_dk
_construct_storage: Any = torch._C._construct_storage_from_data_pointer

# Addresses that no allocation can have: beyond the 47 bits of user space. Reading one is a fault, never a
# silent wrong value; two live storages never share one, which is all that safetensors asks of `data_ptr`.
_FIRST_ADDRESS = 0x7A00_0000_0000_0000
_next_address = _FIRST_ADDRESS


def guard_of(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Tells whether tensors have the class, dispatch keys, dtype, size, stride and `requires_grad` of these."""
    sizes = [list(t.shape) for t in tensors]
    strides = [list(t.stride()) for t in tensors]
    guards: Any = torch._C._dynamo.guards  # its stub says another type of the sizes
    guard = guards.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    check: Callable[..., bool] = guard.check
    return check


def alias(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a view operator's Meta kernel on tensors of the device.

    The kernel looks only at size, stride and offset, so that the result is a true alias: it shares the
    Storage, and with it everything that hangs on the Storage.
    """
    return op._op_dk(_META, *args, **kwargs)


def as_strided(tensor: torch.Tensor, size: Any, stride: Any, offset: Any = 0) -> torch.Tensor:
    """A true alias of `tensor`'s Storage with this geometry (elements, not bytes)."""
    return _as_strided(_META, tensor, size, stride, offset)


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

    The CPU kernel is used because it sets geometry without touching data, as long as the Storage is
    large enough; the Meta kernel would try to resize the Storage through an allocator we do not have.
    """
    _set_storage(_CPU, tensor, storage, offset, size, stride)
    return tensor


def default_device() -> torch.device | None:
    """The last argument of `torch.set_default_device` in this thread: None, unlike the CPU, has no overhead."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


_stack_size: Any = torch._C._len_torch_function_stack
_stack_at: Any = torch._C._get_function_stack_at


_only_mode: tuple[Any, tuple[Any, ...]] = (None, ())


def open_modes() -> tuple[Any, ...] | None:
    """The function modes of this thread: default devices as devices, other modes as objects.

    None for nothing, which costs nothing.
    """
    global _only_mode
    size = _stack_size()
    if not size:
        return None
    if size == 1:  # a default device, as a rule: the same object for long
        mode = _stack_at(0)
        if mode is not _only_mode[0]:
            _only_mode = mode, (getattr(mode, "device", mode),)
        return _only_mode[1]
    return tuple([getattr(mode, "device", mode) for mode in map(_stack_at, range(size))])


def device_block() -> torch.device | None:
    """The device of the innermost `with torch.device(...)` block that is open in this thread."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    base = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext) and mode is not base:
            return mode.device
    return None


# Tensors that the dispatcher turns into others before a kernel: subclasses and fakes, batches, lazy bits, symbolic
# zeros. By name: Python's DispatchKey lacks some.
_NOT_PLAIN: Any = DispatchKeySet(DispatchKey.Python)
for _key in ("Batched", "FuncTorchBatched", "Conjugate", "Negative", "ZeroTensor"):
    _NOT_PLAIN |= DispatchKeySet(torch._C._dispatch_key_parse(_key))
_dispatch_keys: Any = torch._C._dispatch_keys
_interpreters: Any = torch._C._functorch.peek_interpreter_stack
_dispatch_modes: Any = torch._C._len_torch_dispatch_stack


is_wrapped: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor


def transformed() -> bool:
    """Whether a transform of torch's is open, or a mode below autograd, which must see what a composite consists of."""
    return _interpreters() is not None or _dispatch_modes() > 0 or forward_ad._current_level >= 0


def interposed(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether something between autograd and the device must see the parts of a composite."""
    return transformed() or any((_dispatch_keys(t) & _NOT_PLAIN).raw_repr() for t in tensors)


next_sequence_number = torch._C._autograd._get_sequence_nr
_saving_hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks
current_autograd_node = torch._C._current_autograd_node


def saving_hooks() -> Any:
    """The innermost `saved_tensors_hooks` of this thread."""
    return _saving_hooks(False)


def sequence_number(node: Any) -> int:
    """When torch made a node of its graph: the count of those made before it in its thread."""
    return node._sequence_nr()


# Held in captured code: torch's optimizers and many models then avoid asking for values.
compiling = Replaced((torch.compiler, "_is_compiling_flag", True))


def _without_dynamo() -> AbstractContextManager[Any]:
    """Let functions made by `torch.compile` run as they are: captured code is compiled as a whole."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled, and its import takes a second
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def hide_from_dynamo(package: str) -> None:
    """Let Dynamo not look into a package's functions where compiled code calls them."""
    from torch._dynamo import trace_rules

    trace_rules.add(package)


def identity(generator: Any) -> int:
    """The identity of a generator's C++ object, whichever Python object wraps it."""
    return int(generator._cdata)


def not_opaque(cls: type) -> None:
    """Let Dynamo leave compiled code where it meets an instance of a subclass of `torch.Generator`.

    So it does for `torch.Generator` itself. A subclass would count as a kind of object that is made fake, and fake
    generators draw nothing.
    """
    from torch._library.opaque_object import _OPAQUE_TYPES

    # A name that is not registered: torch then finds that the class is not opaque.
    base = _OPAQUE_TYPES[torch.Generator]
    _OPAQUE_TYPES[cls] = dataclasses.replace(base, class_name=f"{cls.__name__} (not opaque)")


def run_without_dynamo(codes: Iterable[CodeType]) -> None:
    """Let Dynamo run these functions, with all that they call, as they are.

    Between the graphs of a compiled function Dynamo looks at every Python function that is called, by C++ too: kernels
    are Python here, where torch's are C++.
    """
    from torch._C._dynamo.eval_frame import (
        _FrameAction,
        _FrameExecStrategy,
        set_code_exec_strategy,
    )

    for code in codes:
        # One object each: torch reads it later.
        strategy = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
        set_code_exec_strategy(code, strategy)


def implement_higher_order(name: str, kernel: Callable[..., Any]) -> None:
    """Make `kernel` what the higher-order operator does with tensors of the device, above autograd and below."""
    operator = getattr(torch.ops.higher_order, name)
    operator.py_impl(DispatchKey.AutogradPrivateUse1)(kernel)
    operator.py_impl(DispatchKey.PrivateUse1)(kernel)


def call_higher_order_directly() -> None:
    """Let `torch.cond` and its like call their operator on tensors of the device.

    torch would compile the call with Dynamo first, which can neither see through a trace nor is needed here.
    """
    from torch._higher_order_ops import utils
    from torch.utils import _pytree as pytree

    theirs = utils._hop_compile_and_call

    def call(fn: Any, args: Any, kwargs: Any = None) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        if any(isinstance(leaf, torch.Tensor) and leaf.device.type == "jax" for leaf in leaves):
            return fn(*args, **(kwargs or {}))
        return theirs(fn, args, kwargs)

    utils._hop_compile_and_call = call


def checkpoint_by(ours: Callable[..., Any], wanted: Callable[[], bool]) -> None:
    """Let `torch.utils.checkpoint.checkpoint` be `ours` wherever `wanted()`, by whatever name it was imported.

    torch keeps there, as an attribute of the undecorated function, what the decorated one calls.
    """
    from torch.utils.checkpoint import checkpoint

    function: Any = checkpoint.__wrapped__  # type: ignore[attr-defined]  # set by a decorator
    theirs = getattr(function, "__dynamo_disable", None)

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal theirs
        if wanted():
            return ours(*args, **kwargs)
        if theirs is None:
            import torch._dynamo

            theirs = torch._dynamo.disable(function, True, wrapping=False)
        return theirs(*args, **kwargs)

    setattr(function, "__dynamo_disable", call)


# A tensor over the memory of a DLPack capsule. The public function asks the capsule's owner for more, for 1 µs.
from_capsule: Callable[[Any], torch.Tensor] = torch._C._from_dlpack

# From now on torch raises where code asks for the memory of this tensor's storage to write to it.
refuse_writes: Callable[[torch.Tensor], None] = torch._C._set_throw_on_mutable_data_ptr

# How many hold the storage of this `_cdata`, its Python object too: tensors, and through them autograd graphs.
users: Callable[[int], int] = torch._C._storage_Use_Count

# How many modes see each call of a torch function in this thread (`torch.device(...)` as a context is one).
function_modes: Callable[[], int] = torch._C._len_torch_function_stack


def is_refused_write(error: RuntimeError) -> bool:
    """Whether an error is `refuse_writes`'s, or autograd's for a write to a leaf, which it has before that one."""
    words = str(error)
    return (
        "Cannot access data pointer of Tensor" in words
        or "a leaf Variable that requires grad" in words
    )


_functorch: Any = torch._C._functorch


def over_batch(
    function: Callable[[list[torch.Tensor]], list[torch.Tensor]],
    size: int,
    operands: Sequence[torch.Tensor],
    marked: Sequence[bool],
) -> list[torch.Tensor]:
    """`torch.vmap` over the first axis of the marked operands. The public function takes 50 us for trees alone."""
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
    from torch._functorch.predispatch import lazy_load_decompositions

    lazy_load_decompositions()
