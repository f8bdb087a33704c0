"""Running a call with torch on memory that belongs to JAX.

JAX's arrays are immutable, and in a callback their memory is valid only during the call. So torch code receives them as
read-only tensors: torch itself refuses write access to their memory, before anything is written. A function that
requests it (an in-place operation, `.numpy()`, a C extension) is run again on copies, and always on copies from then
on. A tensor that the function keeps beyond the call is detected through the remaining references to its storage.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import jax
import numpy as np
import torch
from jax.experimental import io_callback
from jax.experimental.buffer_callback import Buffer, ExecutionContext, buffer_callback

from ...base import torch_private
from ...programs.site import warn
from ...storage.transfer import as_numpy
from .addresses import ReadOnlyAddresses, tried
from .calls import TorchCall

Tensor = torch.Tensor
Operands = Sequence[jax.Array]
Results = Sequence[jax.Array]
Borrow = Callable[[Buffer], Tensor]
_ENGINE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class TorchCallError(RuntimeError):
    """An error of torch code in a JAX program. The message has torch's traceback: XLA passes on nothing else."""


def on_cpu(call: TorchCall, operands: Operands) -> Results:
    """The call in a JAX program on the CPU, over XLA's own buffers."""
    return buffer_callback(
        functools.partial(_fill, call, "cpu", _over_host_memory), list(call.outs)
    )(*operands)


def on_gpu(call: TorchCall, operands: Operands) -> Results:
    """The call in a JAX program on a GPU, over XLA's own buffers and on its stream."""
    return buffer_callback(functools.partial(_fill_on_stream, call), list(call.outs))(*operands)


def on_host(call: TorchCall, operands: Operands) -> Results:
    """The call in a JAX program on a device that torch has no kernels for."""
    warn(
        f"{call!r} runs on the host, because torch has no kernels for {jax.default_backend()}: its inputs and outputs "
        "are copied at each call. jaxtorch.jax_view compiles torch code for the device itself.",
    )
    return jax.pure_callback(functools.partial(_host, call), list(call.outs), *operands)


def in_order(call: TorchCall, operands: Operands) -> Results:
    """The call as an effect: it happens each time that the program reaches it, in program order."""
    return io_callback(functools.partial(_host, call), list(call.outs), *operands, ordered=True)


def _fill_on_stream(
    call: TorchCall, ctx: ExecutionContext, out: Sequence[Buffer], *buffers: Buffer
) -> None:
    """Torch's launches are ordered after XLA's earlier ones and before its later ones, without waiting."""
    with torch.cuda.stream(torch.cuda.ExternalStream(ctx.stream)):
        _fill(call, "cuda", torch.from_dlpack, ctx, out, *buffers)  # type: ignore[attr-defined]  # not in its stubs


def _fill(
    call: TorchCall,
    device: str,
    borrow: Borrow,
    _ctx: ExecutionContext,
    out: Sequence[Buffer],
    *buffers: Buffer,
) -> None:
    try:
        if _is_standalone_state():
            _run_into(call, borrow, out, buffers)
        else:
            with _standalone_state(device):
                _run_into(call, borrow, out, buffers)
    except BaseException as error:
        raise _described(call, error) from None


def _run_into(
    call: TorchCall, borrow: Borrow, out: Sequence[Buffer], buffers: Sequence[Buffer]
) -> None:
    operands = [borrow(buffer) for buffer in buffers]
    lent = [tensor.untyped_storage() for tensor in operands]
    results = _attempted(call, operands)
    for buffer, result in zip(out, results, strict=True):
        borrow(buffer).copy_(result.detach() if result.requires_grad else result)
        del result
    del results, operands
    if any(torch_private.users(storage._cdata) > 1 for storage in lent):
        gc.collect()  # a cycle that the call has left behind does not keep its arguments
    for i, storage in enumerate(lent):
        if torch_private.users(storage._cdata) > 1:
            raise RuntimeError(_retained(call, i))


def _host(call: TorchCall, *arrays: jax.Array) -> list[np.ndarray]:
    try:
        with _standalone_state("cpu"):
            return [
                as_numpy(result)
                for result in _attempted(call, list(map(_over_host_memory, arrays)))
            ]
    except BaseException as error:
        raise _described(call, error) from None


def _over_host_memory(buffer: Buffer | jax.Array) -> Tensor:
    """A CPU tensor over the memory of a buffer: `torch.from_dlpack`, without its 1.3 µs of checks."""
    return torch_private.from_capsule(buffer.__dlpack__())


def _is_standalone_state() -> bool:
    """Whether torch's state in this thread is that of a standalone program."""
    return (
        torch.is_grad_enabled()
        and not torch.is_inference_mode_enabled()
        and not torch_private.function_modes()
    )


@contextmanager
def _standalone_state(device: str) -> Iterator[None]:
    """Torch's state as in a standalone program, whatever the state of the thread that JAX calls from."""
    # The device too, because `%jax on` would put new tensors on the jax device.
    with torch.inference_mode(False), torch.enable_grad(), torch.device(device):
        yield


def _attempted(call: TorchCall, operands: list[Tensor]) -> list[Tensor]:
    for tensor in operands:
        torch_private.refuse_writes(tensor)
    traits = call.traits
    copied, addresses = traits.copies, traits.addresses  # before: another thread may set them
    try:
        with ReadOnlyAddresses() if addresses and not copied else nullcontext():
            return _run(call, operands)
    except RuntimeError as error:
        if copied or not torch_private.is_refused_write(error):
            raise
    if not addresses:
        return tried(functools.partial(_run, call), operands, traits)
    traits.copies = True
    return _attempted(call, operands)


def _run(call: TorchCall, operands: list[Tensor]) -> list[Tensor]:
    return _run_derivative(call, operands) if call.is_derivative else call.run(operands, False)


def _run_derivative(call: TorchCall, operands: list[Tensor]) -> list[Tensor]:
    """Run a derivative, and warn if the function draws random numbers, so that it does not match the value."""
    if call.traits.seeded or call.traits.warned:
        return call.run(operands, nested=False)
    before = torch.default_generator.get_state()
    results = call.run(operands, nested=False)
    if not torch.equal(before, torch.default_generator.get_state()):
        call.traits.warned = True
        warn(
            f"{call.traits.name} draws random numbers. JAX runs it again to compute a derivative, with different "
            "numbers, so the derivative does not match the value: use torch2jax(f, rng=True), which takes a key.",
        )
    return results


def _retained(call: TorchCall, i: int) -> str:
    return (
        f"{call!r} keeps its argument {i} ({call.ins[i].dtype}{list(call.ins[i].shape)}) after the call, directly, "
        "through a view or through a graph. JAX owns its memory and will reuse it: keep argument.clone() instead."
    )


def _described(call: TorchCall, error: BaseException) -> TorchCallError:
    """The error for JAX: torch's traceback as text, without the frames of jaxtorch and JAX around it."""
    described = traceback.TracebackException.from_exception(error, compact=True)
    engine = [i for i, frame in enumerate(described.stack) if frame.filename.startswith(_ENGINE)]
    users = described.stack[engine[-1] + 1 :] if engine else described.stack
    described.stack = traceback.StackSummary.from_list(list(users))
    # The frames hold tensors over memory that is no longer valid; a debugger must not read it.
    traceback.clear_frames(error.__traceback__)
    message = f"in {call!r}, called from JAX:\n{''.join(described.format()).rstrip()}"
    return TorchCallError(message if call.caught is None else call.caught.keep(error))


class CaughtErrors:
    """Errors stored for the Python caller. XLA passes on only the message, so each error has a number."""

    def __init__(self) -> None:
        self._errors: dict[str, BaseException] = {}
        self._number = itertools.count()

    def keep(self, error: BaseException) -> str:
        """Store an error; returns the text that identifies it in XLA's message."""
        text = f"torch call error {next(self._number)}."
        self._errors[text] = error
        return text

    def take(self, error: Exception) -> BaseException:
        """The error that XLA's message refers to, or else XLA's own."""
        match = re.search(r"torch call error \d+\.", str(error))
        return error if match is None else self._errors.pop(match[0], error)
