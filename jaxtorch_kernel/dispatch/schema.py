"""Properties of an operator's arguments, derived from its schema once per overload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..base.torch_private import OpOverload

# The arguments of an operator, as torch passes them: tensors, numbers, lists of them, and static values.
Arguments = tuple[Any, ...]
# What runs an operator: takes its arguments, returns its results.
Kernel = Callable[..., Any]

# Kinds of arguments, as plain integers because each call compares them once per argument. A plain number may be passed
# for the kinds up to NUMBER.
TENSOR = 0
NUMBER = 1  # Scalar, float, and their optionals
TENSORS = 2  # Tensor[], Tensor?[]
NUMBERS = 3  # Scalar[], float[]
GENERATOR = 4
STATIC = 5
FLAG = 6  # a bool that is an operand, as an integer (`Lowering.flags`)

_KINDS = {
    "Tensor": TENSOR,
    "Optional[Tensor]": TENSOR,
    "List[Tensor]": TENSORS,
    "List[Optional[Tensor]]": TENSORS,
    "Optional[List[Tensor]]": TENSORS,
    "number": NUMBER,
    "float": NUMBER,
    "Optional[number]": NUMBER,
    "Optional[float]": NUMBER,
    "List[number]": NUMBERS,
    "List[float]": NUMBERS,
    "Optional[List[float]]": NUMBERS,
    "Optional[List[number]]": NUMBERS,
    "Generator": GENERATOR,
    "Optional[Generator]": GENERATOR,
}


class Signature:
    """The arguments and results of one overload, or of a JAX function, which has no schema.

    Attributes:
        op: the overload; None for a JAX function, whose other attributes are empty.
        names: the names of the arguments.
        kinds: the kinds of the arguments.
        defaults: the default values of the arguments.
        positional: how many arguments are not keyword-only.
        required_kinds: the kinds of the arguments without a default value.
        written: indices of the arguments that the operator writes (`add_`'s self, `out=`).
        is_out: they are `out` arguments, which are resized to fit and returned.
        is_view: some result shares memory with an argument that is not written.
        fresh: it returns new tensors besides what it writes (`native_batch_norm`).
        returns_list: for each result, whether it is a list of tensors.
        functional: the overload with the same arguments that writes nothing, or None.
    """

    def __init__(self, op: OpOverload | None):
        arguments = op._schema.arguments if op is not None else []
        returns = op._schema.returns if op is not None else []
        self.op = op
        self.names = tuple(a.name for a in arguments)
        self.kinds = tuple(_KINDS.get(str(a.type), STATIC) for a in arguments)
        self.defaults = tuple(a.default_value for a in arguments)
        self.positional = sum(not a.kwarg_only for a in arguments)
        self.required_kinds = frozenset(
            kind for kind, a in zip(self.kinds, arguments, strict=True) if not a.has_default_value()
        )
        self.written = tuple(
            i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write
        )
        self.is_out = any(getattr(a, "is_out", False) for a in arguments)
        self.is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        self.fresh = any(r.alias_info is None for r in returns)
        self.returns_list = tuple(str(r.type).startswith("List") for r in returns)
        self.functional = _functional(op, self) if op is not None and self.written else op

    def complete(self, args: Arguments, kwargs: Mapping[str, object] | None = None) -> Arguments:
        """All arguments in schema order, defaults filled in."""
        kwargs = kwargs or {}
        rest = range(len(args), len(self.names))
        return (*args, *(kwargs.get(self.names[i], self.defaults[i]) for i in rest))

    def inputs(self, args: Sequence[Any]) -> Arguments:
        """The arguments without those that are `out=`."""
        if not self.is_out:
            return tuple(args)
        return tuple(a for i, a in enumerate(args) if i not in self.written)

    def call(self, function: Kernel, arguments: Sequence[object]) -> Any:
        """Call a function with all arguments in schema order, the keyword-only ones by name."""
        keywords = zip(self.names[self.positional :], arguments[self.positional :], strict=False)
        return function(*arguments[: self.positional], **dict(keywords))


def short_name(op: OpOverload) -> str:
    """The name in the table of lowerings: "add.Tensor" for `aten::add.Tensor`."""
    name = op._schema.name.removeprefix("aten::")
    return f"{name}.{op._overloadname}"


def _functional(op: OpOverload, signature: Signature) -> OpOverload | None:
    """The overload that computes what `op` writes.

    `add_.Tensor` -> `add.Tensor`, `add.out` -> `add.Tensor`. It is identified by its arguments, because the overloads'
    names follow no rule.
    """
    namespace, base = op._schema.name.split("::")
    plain = base
    if not signature.is_out and base.endswith("_") and not base.endswith("__"):
        plain = base[:-1]
    elif base.startswith("__i") and base.endswith("__"):
        plain = "__" + base[3:]
    try:
        packet = getattr(getattr(torch.ops, namespace), plain)
    except AttributeError:
        return None
    outputs = set(signature.written) if signature.is_out else set()
    wanted = [(a.name, str(a.type)) for i, a in enumerate(op._schema.arguments) if i not in outputs]
    for overload in packet.overloads():
        candidate: OpOverload = getattr(packet, overload)
        arguments = candidate._schema.arguments
        if any(a.alias_info is not None and a.alias_info.is_write for a in arguments):
            continue
        if [(a.name, str(a.type)) for a in arguments] == wanted:
            return candidate
    return None
