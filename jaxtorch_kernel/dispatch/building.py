"""Building a program on a cache miss: checks that raise torch's own errors, then a `Program` for the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import torch

from ..base.naming import parameter_names
from ..base.options import Options
from ..base.torch_private import OpOverload
from ..lowerings.registry import Lowering
from . import overlap, targets
from .call import Call, kind_by_value
from .cpu_errors import check_dtypes, cpu_error, raise_cpu_error
from .meta import call_meta
from .operands import Operands
from .program import Program
from .results import effects, written_by_position
from .schema import GENERATOR, Arguments, Signature
from .targets import Type
from .template import template_of

# Operators that do not read what they write.
_OVERWRITING = ("copy_.default", "fill_.Scalar", "fill_.Tensor", "zero_.default")
_TORCH_PRECISION = {"highest": "highest", "high": "high", "medium": "default"}


class Builder:
    """Builds the programs of one operator.

    Args:
        op: the overload, or None for a JAX function.
        name: of the operator.
        kinds: of its arguments; empty for a JAX function.
        result_types: gives size and dtype of each result of a functional overload, for `out=`.
    """

    def __init__(
        self,
        op: OpOverload | None,
        signature: Signature,
        lowering: Lowering,
        name: str,
        kinds: tuple[int, ...],
        result_types: Callable[[OpOverload, Sequence[object]], list[Type]],
    ):
        self.op, self.signature, self.lowering = op, signature, lowering
        self.name, self.kinds = name, kinds
        self.result_types = result_types
        pointwise = op is not None and torch.Tag.pointwise in op.tags
        self.pointwise = pointwise or lowering.by_position
        # Whether an element of the result may depend on other elements than that in its place.
        self.mixes = not (op is None or pointwise or lowering.random or self.name in _OVERWRITING)

    def build(self, call: Call, gather: bool = False) -> Program:
        """The program of a call.

        Args:
            gather: read all views element by element, because a plan does not apply to an offset.

        Raises:
            Whatever torch raises for these arguments.
        """
        if self.lowering.decomposed:
            return self._build(call, gather)
        try:
            return self._build(call, gather)
        except (TypeError, ValueError, IndexError) as error:
            # torch's Meta kernel accepts what JAX refuses (a dtype, mostly): torch's CPU kernel provides the message.
            functional = self.signature.functional
            if functional is None or isinstance(error, jax.errors.ConcretizationTypeError):
                raise
            inputs = self.signature.inputs(self.signature.complete(call.args))
            raise cpu_error(functional, Signature(functional), inputs) or error from None

    def _build(self, call: Call, gather: bool) -> Program:
        signature = self.signature
        args = signature.complete(call.args)
        kinds = self.kinds if self.op is not None else tuple(map(kind_by_value, args))
        omitted = [i for i, kind in enumerate(kinds) if kind == GENERATOR]
        if signature.is_out:
            omitted += signature.written
        names, given = self._names(len(args)), len(call.args)
        template = template_of(args, kinds, names, given, omitted, self.pointwise)
        written, structure = effects(signature, args, call.tensors)
        if self.op is not None and written:
            overlap.check_targets(self.op, signature, call.args, [call.tensors[i] for i in written])
        metas = self._metas(args)
        operands = Operands(
            call.tensors,
            call.buffers,
            call.numbers,
            written,
            self.lowering.random,
            gather,
            self.name,
        )
        options: Options = call.key[0]
        precision = options.matmul_precision or _TORCH_PRECISION.get(
            torch.get_float32_matmul_precision()
        )
        return Program(
            self.name,
            self.lowering,
            template,
            operands,
            metas,
            structure,
            precision,
            self.mixes,
            self._computed(args),
            written_by_position(signature, args, call.tensors),
        )

    def _names(self, count: int) -> Sequence[str]:
        """The names of the arguments: the schema's, or those of the JAX function."""
        if self.op is not None:
            return self.signature.names
        before = int(self.lowering.random)  # of its parameters: the draws
        return parameter_names(self.lowering.function, count + before)[before:]

    def _computed(self, args: Arguments) -> Sequence[torch.dtype]:
        """The dtypes that results have before they are cast to those of `out=`; none if `out` says what they are.

        The dtype of `out` takes the place of the argument `dtype`, where there is one (`sum`, `cumprod`).
        """
        signature = self.signature
        functional = signature.functional
        if not signature.is_out or functional is None or "dtype" in signature.names:
            return ()
        return [dtype for _, dtype in self.result_types(functional, signature.inputs(args))]

    def _metas(self, args: Arguments) -> object:
        """Meta tensors for the new results; raises torch's own errors for bad arguments."""
        signature, op = self.signature, self.op
        if op is None or signature.is_out:
            return None  # `fit_targets` checks an `out=`, with the functional overload
        functional = signature.functional
        checked = functional or op
        check_dtypes(checked, Signature(checked), args)
        if not self.lowering.meta:
            return None
        if not signature.written or signature.fresh:
            return call_meta(op, signature, args)
        if functional is None:
            call_meta(op, signature, args)
            return None
        metas = call_meta(functional, Signature(functional), args)
        targets.check_in_place(metas, [args[i] for i in signature.written])
        return None

    def fit_targets(self, call: Call) -> bool:
        """Resize the `out=` tensors to the results. True if one changed, and with it the call's key."""
        signature = self.signature
        if self.op is None or not signature.is_out:
            return False
        assert signature.functional is not None
        outs = [call.args[i] for i in signature.written]
        targets.check_devices(outs, self.name)
        overlap.check_targets(self.op, signature, call.args, outs)
        types = self.result_types(signature.functional, signature.inputs(call.args))
        if any(out.dtype != dtype for out, (_, dtype) in zip(outs, types, strict=True)):
            # Some operators cast to the dtype of `out`, others require the exact dtype.
            raise_cpu_error(self.op, signature, call.args)
        return targets.resize(outs, types)
