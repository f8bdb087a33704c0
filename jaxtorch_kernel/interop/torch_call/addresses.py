"""Functions that take the address of an argument (`data_ptr()`): for a C library, a Triton kernel.

torch counts an address as a request to write, since it cannot see what happens there, and a function that writes gets
copies. Most functions only read at the address. So a function that asks for one is tried once on copies. If these are
unchanged afterwards, it gets the addresses of JAX's own memory from then on; everything else that requests write access
is still refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch.overrides import TorchFunctionMode

from ...base import torch_private
from .calls import Traits

Tensor = torch.Tensor


class NoAddress(RuntimeError):
    """A function asks for the address of a tensor that has no memory."""


class ReadOnlyAddresses(TorchFunctionMode):
    """Gives out the addresses of tensors whose memory must not be written to."""

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: Iterable[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if function is not Tensor.data_ptr:
            return function(*args, **(kwargs or {}))
        (tensor,) = args
        assert isinstance(tensor, Tensor)
        if isinstance(tensor, torch_private.FakeTensor):
            raise NoAddress("data_ptr() of a tensor without values")
        try:
            return function(tensor)
        except RuntimeError as error:
            if not torch_private.is_refused_write(error):
                raise
            offset = int(tensor.storage_offset()) * tensor.element_size()
            return torch_private.data_address(tensor) + offset


def tried(
    run: Callable[[list[Tensor]], list[Tensor]], operands: Sequence[Tensor], traits: Traits
) -> list[Tensor]:
    """The results of a function that was refused write access. Notes whether it only takes addresses, and reads there.

    Args:
        run: the function, of a list of tensors.
        operands: its arguments, which it does not get itself.
        traits: gets `addresses` or `copies`.
    """
    copies = [t.clone() for t in operands]
    for copy in copies:
        torch_private.refuse_writes(copy)
    try:
        with ReadOnlyAddresses():
            results = run(copies)
    except RuntimeError as error:
        if not torch_private.is_refused_write(error):
            raise
        traits.copies = True
        return run([t.clone() for t in operands])
    if all(map(_same_bytes, copies, operands)):
        traits.addresses = True
    else:
        traits.copies = True
    return results


def _same_bytes(a: Tensor, b: Tensor) -> bool:
    """Equal to the last bit: NaN is NaN here."""
    return torch.equal(*(t.detach().contiguous().view(-1).view(torch.uint8) for t in (a, b)))
