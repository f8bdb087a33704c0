"""torch's CPU kernels as the oracle for errors that its Meta kernels do not raise.

The CPU kernel is called with zeros in place of the tensors, once for each program key and each number. Only listed
operators are checked, because many CPU kernels are slow, depend on values, or crash on invalid arguments.

* `lowerings/argument_checks.py` lists operators whose Meta kernels accept invalid dims, shapes or numbers.
* `lowerings/refused.py` lists operators by the dtypes for which torch has no kernel.
* If a lowering raises a TypeError or a ValueError, the CPU kernel provides the error (`building.py`).
* Writes to memory that may overlap are checked with memory that overlaps in the same way (`overlap.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..base.torch_private import OpOverload
from ..lowerings.argument_checks import ALWAYS, EMPTY, SAME_DTYPE
from ..lowerings.promote import kind_of
from ..lowerings.refused import REFUSED
from ..storage.dtypes import to_numpy
from .call import Call
from .schema import Arguments, Signature

# A tensor of up to so many elements is replaced by dense zeros, which some kernels require; a larger one by a single
# expanded zero.
MOST_ZEROS = 1 << 20
# Calls with larger tensors are not checked: the CPU kernel would take seconds.
MOST_ELEMENTS = 1 << 24
_MOST_ACCEPTED = 4096

_LinAlgError: type[Exception] = vars(torch.linalg)["LinAlgError"]
# (a tensor of the device, whether it is written) -> the CPU tensor to use in its place
Replacement = Callable[[torch.Tensor, bool], torch.Tensor]


def base_name(op: OpOverload) -> str:
    """The operator's name without its overload, the same in place and not.

    Example:
        >>> base_name(torch.ops.aten.add_.Tensor), base_name(torch.ops.aten.add.out)
        ('add', 'add')
    """
    return op._schema.name.split("::")[1].rstrip("_")


def zeros(a: torch.Tensor, written: bool) -> torch.Tensor:
    """A CPU tensor of zeros, like a tensor of the device."""
    if written or a.numel() <= MOST_ZEROS:
        return torch.zeros(a.shape, dtype=a.dtype, device="cpu")
    return torch.zeros((), dtype=a.dtype, device="cpu").expand(a.shape)


def _no_elements(a: torch.Tensor, written: bool) -> torch.Tensor:
    return torch.zeros(0, dtype=a.dtype, device="cpu")


def cpu_error(
    op: OpOverload, signature: Signature, args: Arguments, replace: Replacement = zeros
) -> Exception | None:
    """The error of the CPU kernel for these arguments, or None if it accepts them or has no memory for them."""

    def on_cpu(a: object, written: bool = False) -> object:
        if isinstance(a, list | tuple):
            return [on_cpu(item, written) for item in a]
        if isinstance(a, torch.device):
            return torch.device("cpu")
        if not isinstance(a, torch.Tensor) or a.device.type == "cpu":
            return a
        return replace(a, written)

    arguments = [on_cpu(a, i in signature.written) for i, a in enumerate(args)]
    if replace is _no_elements and "size" in signature.names:
        arguments[signature.names.index("size")] = [0]
    random = torch.default_generator.get_state()
    try:
        signature.call(op, arguments)
    except Exception as error:
        return None if "DefaultCPUAllocator" in str(error) else error
    finally:
        torch.default_generator.set_state(random)
    return None


def check_dtypes(op: OpOverload, signature: Signature, args: Arguments) -> None:
    """Raise the CPU's error for an operand of a dtype that torch has no kernel for (`lowerings/refused.py`)."""
    refused = REFUSED.get(op._schema.name.removeprefix("aten::"))
    if refused is None:
        return
    kinds = [kind_of(to_numpy(a.dtype)) for a in args if isinstance(a, torch.Tensor)]
    # Only the first operand is checked for integers: later ones may be indices.
    if kinds and (kinds[0] in refused or ("c" in kinds and "c" in refused)):
        error = cpu_error(op, signature, args)
        if error is not None:
            raise error


class ArgumentChecks:
    """Checks the calls of one operator by its CPU kernel, and remembers the calls that it accepted."""

    def __init__(self, op: OpOverload, signature: Signature):
        self._op, self._signature = op, signature
        self._replace = _no_elements if base_name(op) in EMPTY else zeros
        self._mixed_only = base_name(op) in SAME_DTYPE
        self._accepted: set[tuple[object, ...]] = set()

    def check(self, call: Call) -> None:
        """Raise the CPU's error for a call that it refuses."""
        key = (*call.key, *call.numbers)
        if key in self._accepted:
            return
        if self.may_fail(call):
            raise_cpu_error(self._op, self._signature, call.args, self._replace)
        if len(self._accepted) >= _MOST_ACCEPTED:
            self._accepted.clear()
        self._accepted.add(key)

    def may_fail(self, call: Call) -> bool:
        """Whether the CPU may refuse a call like this, and its kernel is fast enough to try."""
        if self._replace is _no_elements:
            return True
        if self._mixed_only and len({t.dtype for t in call.tensors}) < 2:
            return False
        return all(t.numel() <= MOST_ELEMENTS for t in call.tensors)


def raise_cpu_error(
    op: OpOverload, signature: Signature, args: Arguments, replace: Replacement = zeros
) -> None:
    """Raise the CPU's error for a call, unless the zeros cause it or the CPU merely lacks a kernel."""
    error = cpu_error(op, signature, signature.complete(args), replace)
    if error is None or _is_due_to_zeros(error) or _lacks_kernel(error):
        return
    raise error


def _is_due_to_zeros(error: Exception) -> bool:
    return isinstance(error, _LinAlgError) or str(error) == "ZeroDivisionError"


def _lacks_kernel(error: Exception) -> bool:
    """Whether the CPU has no kernel for the dtype. The device may have one, as cuda does (`lowerings/refused.py`).

    Example:
        >>> _lacks_kernel(NotImplementedError("lerp_kernel not implemented for Half"))
        True
    """
    return "not implemented for" in str(error)


def argument_checks(op: OpOverload | None, signature: Signature) -> ArgumentChecks | None:
    """The checks for an operator's calls, or None if its Meta kernel is sufficient."""
    if op is None or op.namespace != "aten":
        return None
    name = base_name(op)
    listed = name in ALWAYS or name in EMPTY or name in SAME_DTYPE
    return ArgumentChecks(op, signature) if listed else None
