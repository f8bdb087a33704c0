"""torch's CPU kernels as the oracle for errors that its Meta kernels do not raise.

The CPU kernel is called with zeros in place of the tensors, once for each program key and each number. Only listed
operators are checked, because many CPU kernels are slow, depend on values, or crash on invalid arguments.

* `lowerings/argument_checks.py` lists operators whose Meta kernels accept invalid dims, shapes or numbers.
* `lowerings/refused.py` lists operators by the dtypes for which torch has no kernel.
* If a lowering raises a TypeError or a ValueError, the CPU kernel provides the error (`Operation._checked`).
* Writes to memory that may overlap are checked with memory that overlaps in the same way (`overlap.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..lowerings.argument_checks import ALWAYS, EMPTY, SAME_DTYPE
from ..lowerings.promote import kind_of
from ..lowerings.refused import REFUSED
from ..storage.dtypes import to_numpy
from .call import Call
from .schema import Signature

# Up to here the CPU is asked with zeros in memory, beyond with one zero for all: some kernels want dense tensors.
_MOST_ZEROS = 1 << 20
# Beyond nothing is asked: the CPU's kernel would take seconds.
_MOST_ELEMENTS = 1 << 24
_MOST_KNOWN = 4096

_LinAlgError: Any = vars(torch.linalg)["LinAlgError"]
Make = Callable[[torch.Tensor, bool], torch.Tensor]  # (tensor, whether it is written) -> on the CPU


def base_name(op: torch._ops.OpOverload) -> str:
    """The operator's name without its overload, the same in place and not.

    Example:
        >>> base_name(torch.ops.aten.add_.Tensor), base_name(torch.ops.aten.add.out)
        ('add', 'add')
    """
    return op._schema.name.split("::")[1].rstrip("_")


def zeros(a: torch.Tensor, written: bool) -> torch.Tensor:
    """A CPU tensor of zeros in the place of a tensor of the device."""
    if written or a.numel() <= _MOST_ZEROS:
        return torch.zeros(a.shape, dtype=a.dtype, device="cpu")
    return torch.zeros((), dtype=a.dtype, device="cpu").expand(a.shape)


def _nothing(a: torch.Tensor, written: bool) -> torch.Tensor:
    return torch.zeros(0, dtype=a.dtype, device="cpu")


def cpu_error(
    op: torch._ops.OpOverload, signature: Signature, args: tuple[Any, ...], make: Make = zeros
) -> Exception | None:
    """The error of the CPU kernel for these arguments, or None if it accepts them."""

    def on_cpu(a: Any, written: bool = False) -> Any:
        if isinstance(a, list | tuple):
            return [on_cpu(item, written) for item in a]
        if isinstance(a, torch.device):
            return torch.device("cpu")
        if not isinstance(a, torch.Tensor) or a.device.type == "cpu":
            return a
        return make(a, written)

    arguments = [on_cpu(a, i in signature.written) for i, a in enumerate(args)]
    names = signature.names
    if make is _nothing and "size" in names:
        arguments[names.index("size")] = [0]
    keywords = dict(
        zip(names[signature.positional :], arguments[signature.positional :], strict=True)
    )
    random = torch.default_generator.get_state()
    try:
        op(*arguments[: signature.positional], **keywords)
    except Exception as error:
        return error
    finally:
        torch.default_generator.set_state(random)
    return None


def check_dtypes(op: torch._ops.OpOverload, signature: Signature, args: tuple[Any, ...]) -> None:
    """Raise the CPU's error for an operand of a dtype that torch has no kernel for (`lowerings/refused.py`)."""
    asked = REFUSED.get(op._schema.name.removeprefix("aten::"))
    if asked is None:
        return
    kinds = [kind_of(to_numpy(a.dtype)) for a in args if isinstance(a, torch.Tensor)]
    # Later operands may be indices, which are integers rightly.
    if kinds and (kinds[0] in asked or ("c" in kinds and "c" in asked)):
        error = cpu_error(op, signature, args)
        if error is not None:
            raise error


class Asking:
    """The checks for the calls of one operator, and the calls that the CPU has accepted."""

    def __init__(self, op: torch._ops.OpOverload, signature: Signature):
        self.op, self.signature = op, signature
        self.make = _nothing if base_name(op) in EMPTY else zeros
        self.mixed_only = base_name(op) in SAME_DTYPE
        self.known: set[Any] = set()

    def check(self, call: Call) -> None:
        """Raise the CPU's error for a call that it does not take."""
        key = (*call.key, *call.numbers)
        if key in self.known:
            return
        if self.worth(call):
            raise_asked(self.op, self.signature, call.args, self.make)
        if len(self.known) >= _MOST_KNOWN:
            self.known.clear()
        self.known.add(key)

    def worth(self, call: Call) -> bool:
        """Whether this call may be wrong, and the CPU's kernel be run for it."""
        if self.make is _nothing:
            return True
        if self.mixed_only and len({t.dtype for t in call.tensors}) < 2:
            return False
        return all(t.numel() <= _MOST_ELEMENTS for t in call.tensors)


def raise_asked(
    op: torch._ops.OpOverload, signature: Signature, args: tuple[Any, ...], make: Make = zeros
) -> None:
    """Raise what the CPU says of a call, unless zeros are to blame or the CPU merely lacks a kernel."""
    error = cpu_error(op, signature, signature.complete(args, {}), make)
    if error is None or isinstance(error, _LinAlgError) or _lacks_kernel(error):
        return
    raise error


def _lacks_kernel(error: Exception) -> bool:
    """Whether the CPU has no kernel for the dtype: the device may have one, as cuda (`lowerings/refused.py` decides).

    Example:
        >>> _lacks_kernel(NotImplementedError("lerp_kernel not implemented for Half"))
        True
    """
    return "not implemented for" in str(error)


def asking(op: torch._ops.OpOverload | None, signature: Signature | None) -> Asking | None:
    """The checks for an operator's calls, or None if its Meta kernel is sufficient."""
    if op is None or signature is None or op.namespace != "aten":
        return None
    name = base_name(op)
    return Asking(op, signature) if name in ALWAYS or name in EMPTY or name in SAME_DTYPE else None
