"""A call run by torch over memory that belongs to JAX.

JAX's arrays are immutable, and in a callback their memory lives as long as the call. So torch code gets them as
tensors that it can only read: torch itself refuses to hand out their memory for writing, before anything is written.
A function that asks for it (an in-place operation, `.numpy()`, a C extension) runs again and from then on over copies.
A tensor that the function keeps beyond the call is found by who still uses its storage.
"""

from __future__ import annotations

import functools
import os
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import jax
import torch
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from torch.utils.dlpack import from_dlpack

from ... import _torch_private
from ...storage.transfer import as_numpy
from .calls import Call

Tensor = torch.Tensor
Borrow = Callable[[Any], Tensor]
_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_AS_IT_IS = nullcontext()


class TorchCallError(RuntimeError):
    """An error of torch code in a JAX program, with torch's traceback: XLA hands on words only."""


def on_cpu(call: Call, operands: Sequence[Any]) -> Any:
    """The call in a JAX program on the CPU, over XLA's own buffers."""
    return buffer_callback(functools.partial(_fill, call, "cpu", _on_cpu), list(call.outs))(
        *operands
    )


def on_gpu(call: Call, operands: Sequence[Any]) -> Any:
    """The call in a JAX program on a GPU, over XLA's own buffers and on its stream."""
    return buffer_callback(functools.partial(_fill_on_stream, call), list(call.outs))(*operands)


def on_host(call: Call, operands: Sequence[Any]) -> Any:
    """The call in a JAX program on a device that torch has no kernels for."""
    warnings.warn(
        f"{call!r} runs on the host, since torch has no kernels for {jax.default_backend()}: what it takes and returns "
        "travels at each call. jaxtorch.jax_view compiles torch code for the device itself.",
        stacklevel=2,
    )
    return jax.pure_callback(functools.partial(_host, call), list(call.outs), *operands)


def in_order(call: Call, operands: Sequence[Any]) -> Any:
    """The call as an effect, once for each time that the program comes to it, in the program's order."""
    return io_callback(functools.partial(_host, call), list(call.outs), *operands, ordered=True)


def _fill_on_stream(call: Call, ctx: Any, out: Sequence[Any], *buffers: Any) -> None:
    """What torch launches goes after what XLA has launched, and before what it will: nobody waits."""
    with torch.cuda.stream(torch.cuda.ExternalStream(ctx.stream)):
        _fill(call, "cuda", torch.from_dlpack, ctx, out, *buffers)  # type: ignore[attr-defined]  # not in its stubs


def _fill(
    call: Call, device: str, borrow: Borrow, _ctx: Any, out: Sequence[Any], *buffers: Any
) -> None:
    try:
        with _own_state(device):
            operands = _lent(buffers, borrow)
            lent = [tensor.untyped_storage() for tensor in operands]
            results = _attempted(call, operands)
            for buffer, result in zip(out, results, strict=True):
                borrow(buffer).copy_(result.detach() if result.requires_grad else result)
                del result
            del results, operands
            _check_not_kept(call, lent)
    except BaseException as error:
        raise _told(call, error) from None


def _host(call: Call, *arrays: Any) -> list[Any]:
    try:
        with _own_state("cpu"):
            return [as_numpy(result) for result in _attempted(call, _lent(arrays, from_dlpack))]
    except BaseException as error:
        raise _told(call, error) from None


def _on_cpu(buffer: Any) -> Tensor:
    """Memory of JAX's as a tensor. `torch.from_dlpack` asks for device and stream first, which costs more than this."""
    return from_dlpack(buffer.__dlpack__())


def _lent(buffers: Sequence[Any], borrow: Borrow) -> list[Tensor]:
    """Tensors over memory of JAX's that torch cannot write to."""
    tensors = [borrow(buffer) for buffer in buffers]
    for tensor in tensors:
        _torch_private.refuse_writes(tensor)
    return tensors


def _own_state(device: str) -> AbstractContextManager[Any]:
    """Torch's state as in a program of its own, whatever the thread that JAX calls from is in."""
    if (
        torch.is_grad_enabled()
        and not torch.is_inference_mode_enabled()
        and not _torch_private.function_modes()
    ):
        return _AS_IT_IS
    stack = ExitStack()
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.enable_grad())
    stack.enter_context(torch.device(device))  # `%jax on` would put new tensors on the jax device
    return stack


def _attempted(call: Call, operands: list[Tensor]) -> list[Tensor]:
    try:
        return _watched(call, operands)
    except RuntimeError as error:
        if call.traits.copies or not _torch_private.is_refused_write(error):
            raise
    call.traits.copies = True
    return _watched(call, operands)


def _watched(call: Call, operands: list[Tensor]) -> list[Tensor]:
    derivative = call.linear_from < len(call.ins)
    if call.traits.seeded or not derivative:
        return call.run(operands, nested=False)
    before = torch.default_generator.get_state()
    results = call.run(operands, nested=False)
    if not torch.equal(before, torch.default_generator.get_state()):
        call.traits.seeded = True  # said once
        warnings.warn(
            f"{call.traits.name} draws random numbers. JAX runs it again for a derivative, with other numbers than "
            "before, and the derivative does not belong to the value: torch2jax(f, rng=True) takes a key.",
            stacklevel=2,
        )
    return results


def _check_not_kept(call: Call, lent: Sequence[torch.UntypedStorage]) -> None:
    for i, storage in enumerate(lent):
        if _torch_private.users(storage):
            aval = call.ins[i]
            raise RuntimeError(
                f"{call!r} keeps its argument {i} ({aval.dtype}{list(aval.shape)}) beyond the call, itself, a view of "
                "it or a graph that needs it. Its memory is JAX's and will hold something else: keep "
                "argument.clone()."
            )


def _told(call: Call, error: BaseException) -> TorchCallError:
    """An error in words: torch's traceback, without the frames of jaxtorch and JAX around it."""
    told = traceback.TracebackException.from_exception(error, compact=True)
    own = [i for i, frame in enumerate(told.stack) if frame.filename.startswith(_OWN)]
    users = told.stack[own[-1] + 1 :] if own else told.stack
    told.stack = traceback.StackSummary.from_list(list(users))
    traceback.clear_frames(
        error.__traceback__
    )  # a debugger would read memory that is no longer lent
    if call.caught is not None:
        call.caught.append(error)
    return TorchCallError(f"in {call!r}, called from JAX:\n{''.join(told.format()).rstrip()}")
