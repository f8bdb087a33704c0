"""Properties of an operator's arguments, derived from its schema once per overload."""

from __future__ import annotations

from typing import Any

import torch

# Kinds of arguments. Plain integers: the hot path compares them once per argument.
# At and below NUMBER stands what a plain number may take the place of.
TENSOR = 0
NUMBER = 1  # Scalar, float, and their optionals
TENSORS = 2  # Tensor[], Tensor?[]
NUMBERS = 3  # Scalar[], float[]
GENERATOR = 4
STATIC = 5

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
    """The arguments of one overload.

    Attributes:
        kinds: one kind per argument, in schema order.
        written: positions of the arguments the operator writes (`add_`'s self, `out=`).
        is_out: they are `out` arguments, which are resized to fit and returned.
        is_view: some result shares memory with an argument that is not written.
        fresh: it returns new tensors, besides what it writes (`native_batch_norm`).
        functional: the overload with the same arguments that writes nothing, or None.
    """

    def __init__(self, op: torch._ops.OpOverload):
        schema = op._schema
        self.op = op
        self.names = tuple(a.name for a in schema.arguments)
        self.kinds = tuple(_KINDS.get(str(a.type), STATIC) for a in schema.arguments)
        self.defaults = tuple(a.default_value for a in schema.arguments)
        self.positional = sum(not a.kwarg_only for a in schema.arguments)
        self.written = tuple(
            i
            for i, a in enumerate(schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        )
        self.is_out = any(getattr(a, "is_out", False) for a in schema.arguments)
        self.is_view = any(
            r.alias_info is not None and not r.alias_info.is_write for r in schema.returns
        )
        self.fresh = any(r.alias_info is None for r in schema.returns)
        self.returns_list = tuple(str(r.type).startswith("List") for r in schema.returns)
        self.functional = _functional(op, self) if self.written else op

    def complete(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments in schema order, defaults filled in."""
        rest = range(len(args), len(self.names))
        return (*args, *(kwargs.get(self.names[i], self.defaults[i]) for i in rest))


def short_name(op: torch._ops.OpOverload) -> str:
    """The name in the table of lowerings: "add.Tensor" for `aten::add.Tensor`."""
    name = op._schema.name.removeprefix("aten::")
    return f"{name}.{op._overloadname}"


def _functional(op: torch._ops.OpOverload, own: Signature) -> torch._ops.OpOverload | None:
    """The overload that computes what `op` writes.

    `add_.Tensor` -> `add.Tensor`, `add.out` -> `add.Tensor`: found by the arguments it takes, because the
    overloads' names follow no rule.
    """
    namespace, base = op._schema.name.split("::")
    plain = base
    if not own.is_out and base.endswith("_") and not base.endswith("__"):
        plain = base[:-1]
    elif base.startswith("__i") and base.endswith("__"):
        plain = "__" + base[3:]
    try:
        packet = getattr(getattr(torch.ops, namespace), plain)
    except AttributeError:
        return None
    outputs = set(own.written) if own.is_out else set()
    wanted = [(a.name, str(a.type)) for i, a in enumerate(op._schema.arguments) if i not in outputs]
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        arguments = candidate._schema.arguments
        if any(a.alias_info is not None and a.alias_info.is_write for a in arguments):
            continue
        if [(a.name, str(a.type)) for a in arguments] == wanted:
            return candidate
    return None
