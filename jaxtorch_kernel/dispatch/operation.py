"""One operator on the device: describe the call, find its program, run it, wrap what comes out.

`Operation.__call__` is the hot path; a cached call of it must cost about what JAX's own jitted call costs. It
does no more than build a key, look it up and call the executable. Everything else is behind a cache miss.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import torch

from ..options import Options, config
from ..lowerings.registry import Lowering
from ..storage import placement
from ..storage.buffer import Buffer, buffer_of
from ..storage.dtypes import to_numpy
from . import tracing
from .errors import explain, mixed_devices
from .meta import call_meta, cpu_error
from .numbers import check_limits, number_operands
from .program import (
    Fresh,
    NumberSlot,
    Program,
    Slot,
    build_lock,
    first_positions,
    flatten,
    single,
    wrap_result,
)
from .site import origin, printing
from .schema import GENERATOR, NUMBER, NUMBERS, STATIC, TENSOR, TENSORS, Signature, short_name

Tensor = torch.Tensor
_letter_of = {int: "i", float: "f", complex: "c"}.get
_default_dtype = torch.get_default_dtype

class Call:
    """A call taken apart: its key, and what the program is run with."""

    __slots__ = ("args", "buffers", "key", "numbers", "tensors")

    def __init__(
        self,
        args: tuple[Any, ...],
        key: list[Any],
        tensors: list[Tensor],
        buffers: list[Buffer],
        numbers: list[tuple[str, Any]],
    ):
        self.args, self.key = args, key
        self.tensors, self.buffers, self.numbers = tensors, buffers, numbers


class Operation:
    """An operator overload and its lowering, callable with the operator's arguments.

    Args:
        op: the overload, or None for a JAX function of our own (`name` then names it).
        lowering: its JAX function.
        copy_cpu: take CPU tensors with dimensions too, by copying them (indices, as on cuda).
    """

    def __init__(
        self,
        op: torch._ops.OpOverload | None,
        lowering: Lowering,
        name: str = "",
        copy_cpu: bool = False,
    ):
        self.op = op
        self.lowering = lowering
        self.copy_cpu = copy_cpu
        self.signature = Signature(op) if op is not None else None
        self.name = short_name(op) if op is not None else name
        self.programs: dict[tuple[Any, ...], Program] = {}
        kinds = list(self.signature.kinds) if self.signature is not None else []
        names = self.signature.names if self.signature is not None else ()
        for i, argument in enumerate(names):
            if argument in lowering.static and kinds[i] in (NUMBER, NUMBERS):
                kinds[i] = STATIC
        if lowering.decomposed:
            kinds = [STATIC if k in (NUMBER, NUMBERS) else k for k in kinds]
        self.kinds = tuple(kinds)
        self.written = self.signature.written if self.signature is not None else ()
        # A factory has no tensor that would tell its program's placement.
        factory = TENSOR not in kinds and TENSORS not in kinds
        self.special = bool(self.written) or lowering.random or factory
        self.call = hot_path(lambda: self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    # -- describing -------------------------------------------------------------------------------------------------

    def complete(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments in schema order, defaults filled in where keywords were given."""
        if not kwargs:
            return args
        assert self.signature is not None
        return self.signature.complete(args, kwargs)

    def describe(
        self,
        kind: int,
        a: Any,
        key: list[Any],
        tensors: list[Tensor],
        buffers: list[Buffer],
        numbers: list[tuple[str, Any]],
    ) -> None:
        """Add one argument to the key and to the operands."""
        if a is None:
            key.append(None)
        elif kind == TENSOR and isinstance(a, Tensor):
            device = a.device.type
            if device == "cpu" and a.dim() == 0:
                key += ("0-dim", a.dtype)
                numbers.append((_letter(a), a.item()))
                return
            if device == "cpu" and self.copy_cpu:
                a = a.to("jax")
            elif device != "jax":
                raise mixed_devices(self.name, a.device)
            buffer = buffer_of(a)
            tensors.append(a)
            buffers.append(buffer)
            key += (buffer.spec, a.dtype, a.shape, a.stride())
        elif kind <= NUMBER:
            # torch hands a Python number in a tensor's place over as what it is.
            letter = _letter_of(type(a))
            if letter is None:
                key.append(_exact(a))
            else:
                key.append(letter)
                numbers.append((letter, a))
        elif kind == TENSORS or kind == NUMBERS:
            key.append(len(a))
            inner = TENSOR if kind == TENSORS else NUMBER
            for item in a:
                self.describe(inner, item, key, tensors, buffers, numbers)
        elif kind == STATIC:
            # 1 == 1.0 == True, and they are different programs.
            key.append(tuple(map(_exact, a)) if isinstance(a, list | tuple) else _exact(a))

    # -- writes and random numbers -----------------------------------------------------------------------------------

    def run_special(self, call: Call) -> Any:
        key, buffers = call.key, call.buffers
        if self.written and len(buffers) > 1:
            key.append(tuple(first_positions(buffers)))
        if self.lowering.random or not buffers:
            key.append(placement.current())
        program = self.programs.get(tuple(key))
        if program is None:
            if self.op is not None and printing():
                return self.on_cpu(call.args)
            if self.signature is not None and self.signature.is_out:
                if self._resize_outputs(call.args):
                    return self(*call.args)
            program = self.build(call)
        for i in program.targets:
            _own(buffers[i])
        operands = [buffers[i].array for i in program.unique]
        if self.lowering.random:
            from ..device.rng import source

            generator = source(_generator_in(self.kinds, call.args))
            with generator.lock:  # two threads must not draw from the same key
                outputs = list(self.run(program, call, [generator.key, *operands]))
                generator.key = outputs.pop()
        else:
            outputs = list(self.run(program, call, operands))
        for i, spec in zip(reversed(program.targets), reversed(program.new_specs), strict=True):
            buffers[i].write(outputs.pop(), spec, origin(program))
        return _results(program, outputs, call.tensors)

    def on_cpu(self, args: tuple[Any, ...]) -> Any:
        from .fallback import on_cpu

        assert self.op is not None
        assert self.signature is not None
        return on_cpu(self.op, self.signature, args, {}, announce=False)

    def _resize_outputs(self, args: tuple[Any, ...]) -> bool:
        """Give `out=` tensors of another size the result's, as torch does; True if one changed."""
        assert self.signature is not None
        assert self.signature.functional is not None
        functional = self.signature.functional
        outs = [args[i] for i in self.written]
        if any(o is None or o.device.type != "jax" for o in outs):
            devices = ", ".join(str(o.device) for o in outs if o is not None)
            raise RuntimeError(
                f"Expected all tensors to be on the same device: out is on {devices}, "
                f"the inputs of {self.name} on jax:0."
            )
        inner = [a for i, a in enumerate(args) if i not in self.written]
        operation = operation_of(functional)
        sizes = operation.result_types(inner)
        changed = False
        for out, (size, dtype) in zip(outs, sizes, strict=True):
            if not torch.can_cast(dtype, out.dtype):
                raise RuntimeError(
                    f"result type {_type_name(dtype)} can't be cast to the desired output type "
                    f"{_type_name(out.dtype)}"
                )
            if tuple(out.shape) != size:
                if out.numel():
                    _warn_resize(out.shape, size)
                out.resize_(size)
                changed = True
        return changed

    def result_types(self, args: list[Any]) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Size and dtype of each result of a functional call, without running it."""
        call = Call(tuple(args), [config.options(), _default_dtype()], [], [], [])
        for kind, a in zip(self.kinds, args, strict=False):
            self.describe(kind, a, call.key, call.tensors, call.buffers, call.numbers)
        program = self.build(call, keep=False)
        return [(leaf.size, leaf.dtype) for leaf in program.leaves if leaf is not None]

    # -- a cache miss ---------------------------------------------------------------------------------------------

    def build(self, call: Call, keep: bool = True, gather: bool = False) -> Program:
        with build_lock:
            frozen = tuple(call.key)
            program = self.programs.get(frozen)
            if program is not None:
                return program
            options: Options = call.key[0]
            args = call.args
            kinds = self.kinds if self.op is not None else tuple(_kind(a) for a in args)
            given = len(args)
            if self.signature is not None:
                args = self.signature.complete(args, {})
            position = _Positions()
            outs = self.written if self.signature is not None and self.signature.is_out else ()
            slots = [
                # An argument left at its default is no operand: the key shows that it was left out.
                _template(kind if i < given else STATIC, a, position)
                for i, (kind, a) in enumerate(zip(kinds, args, strict=True))
            ]
            template = [
                slot
                for i, slot in enumerate(slots)
                if kinds[i] != GENERATOR and i not in outs
            ]
            written, structure = self._effects(args, call.tensors)
            precision = options.matmul_precision or _TORCH_PRECISION.get(
                torch.get_float32_matmul_precision()
            )
            make = partial(
                Program,
                self.name,
                self.lowering,
                template,
                call.tensors,
                call.buffers,
                [kind for kind, _ in call.numbers],
                self._metas(args),
                written,
                precision,
                gather,
                structure,
            )
            program = make() if self.lowering.decomposed else self._checked(make, args)
            if keep:
                self.programs[frozen] = program
            return program

    def _checked(self, make: Callable[[], Program], args: tuple[Any, ...]) -> Program:
        """The program, or torch's own exception where JAX refuses what Meta let pass (a dtype, mostly)."""
        try:
            return make()
        except (TypeError, ValueError) as error:
            functional = self.signature.functional if self.signature is not None else None
            if functional is None or isinstance(error, jax.errors.ConcretizationTypeError):
                raise
            inputs = args
            if self.signature is not None and self.signature.is_out:
                inputs = tuple(a for i, a in enumerate(args) if i not in self.written)
            raise cpu_error(functional, Signature(functional), inputs) or error from None

    def _metas(self, args: tuple[Any, ...]) -> Any:
        """Meta tensors for the fresh results; raises torch's own errors for bad arguments."""
        signature = self.signature
        if signature is None or not self.lowering.meta:
            return None
        if not signature.written or signature.fresh:
            return call_meta(signature.op, signature, args)
        if signature.is_out:
            return None  # checked in `_resize_outputs`, with the functional overload
        functional = signature.functional
        if functional is None:
            call_meta(signature.op, signature, args)
            return None
        self._check_in_place(call_meta(functional, Signature(functional), args), args)
        return None

    def _check_in_place(self, result: Any, args: tuple[Any, ...]) -> None:
        metas = [m for m in flatten(result) if isinstance(m, Tensor)]
        targets = [t for i in self.written for t in flatten(args[i]) if isinstance(t, Tensor)]
        for meta, target in zip(metas, targets, strict=False):
            if meta.shape != target.shape:
                raise RuntimeError(
                    f"output with shape {list(target.shape)} doesn't match the broadcast shape "
                    f"{list(meta.shape)}"
                )
            if not torch.can_cast(meta.dtype, target.dtype):
                raise RuntimeError(
                    f"result type {_type_name(meta.dtype)} can't be cast to the desired output "
                    f"type {_type_name(target.dtype)}"
                )

    def _effects(
        self, args: tuple[Any, ...], tensors: list[Tensor]
    ) -> tuple[list[int], Callable[[list[Any], list[Tensor]], Any]]:
        """Which described tensors are written, and how the operator's return value is put together."""
        signature = self.signature
        if signature is None:
            return [], _plain_structure
        ids = {id(t): i for i, t in enumerate(tensors)}
        written = [
            ids[id(t)]
            for i in signature.written
            for t in flatten(list(args[i]) if isinstance(args[i], list | tuple) else args[i])
            if t is not None
        ]
        lists = signature.returns_list
        if not written or signature.fresh:
            if lists == (False,):
                return written, single
            return written, list_of if lists == (True,) else tuple_of
        if not lists:
            return written, _nothing
        if lists == (True,):
            return written, lambda _, ts: [ts[i] for i in written]
        if len(lists) == 1:
            only = written[0]
            return written, lambda _, ts: ts[only]
        return written, lambda _, ts: tuple(ts[i] for i in written)

    def run(self, program: Program, call: Call, operands: list[Any]) -> Any:
        """Call the executable, or inline the function where a trace is running."""
        if program.checked:
            starts: list[int] = []
            for i, p in program.checked:
                own = p.starts(call.tensors[i].storage_offset())
                if own is None:
                    call.key.append("gather")
                    return self.run(self.build(call, gather=True), call, operands)
                starts += own
            if program.views:
                operands.append(np.array(starts, np.int32))
        if tracing.active():
            with jax.enable_x64(True):
                numbers = number_operands(program.number_kinds, call.numbers, np.array)
                return program.function(*operands, *numbers)
        if call.numbers:
            if program.limits:
                check_limits(program.limits, call.numbers)
            operands += number_operands(program.number_kinds, call.numbers)
        try:
            return (program._call or program.compiled())(*operands)
        except jax.errors.JaxRuntimeError as error:
            raise explain(error, self.name) from None


def hot_path(find: Callable[[], Any]) -> Callable[..., Any]:
    """The kernel that torch calls: describe, look up, run, wrap.

    A closure, because an attribute of `self` costs 30 ns and a method one more frame, and `find` makes the Operation
    at the first call, because making two thousand of them would cost the first user 100 ms.
    """
    operation: Any = None
    kinds: tuple[int, ...] = ()
    programs: dict[tuple[Any, ...], Program] = {}

    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal operation, kinds, programs
        if operation is None:
            operation = find()
            if isinstance(operation, Operation):
                kinds, programs = operation.kinds, operation.programs
        if kwargs or not kinds:
            if not isinstance(operation, Operation):
                return operation(*args, **kwargs)
            args = operation.complete(args, kwargs)
        key: list[Any] = [config._base if not config._open else config.options(), _default_dtype()]
        tensors: list[Tensor] = []
        buffers: list[Buffer] = []
        numbers: list[tuple[str, Any]] = []
        for kind, a in zip(kinds or map(_kind, args), args):  # noqa: B905  (the keyword costs 60 ns)
            letter = _letter_of(type(a))
            if letter is None:
                if kind == TENSOR and a is not None:
                    buffer = getattr(a.untyped_storage(), "buffer", None)
                    if buffer is not None:
                        tensors.append(a)
                        buffers.append(buffer)
                        key += (buffer.spec, a.dtype, a.shape, a.stride())
                        continue
            elif kind <= NUMBER:
                key.append(letter)
                numbers.append((letter, a))
                continue
            operation.describe(kind, a, key, tensors, buffers, numbers)
        if operation.special:
            return operation.run_special(Call(args, key, tensors, buffers, numbers))
        program = programs.get(tuple(key))
        if program is None:
            if printing():
                return operation.on_cpu(args)
            program = operation.build(Call(args, key, tensors, buffers, numbers))
        operands = [b.array for b in buffers]
        if program.checked or numbers or tracing.depth:
            call = Call(args, key, tensors, buffers, numbers)
            outputs = operation.run(program, call, operands)
        else:
            try:
                outputs = (program._call or program.compiled())(*operands)
            except jax.errors.JaxRuntimeError as error:
                raise explain(error, program.name) from None
        if not program.single:
            return _results(program, outputs, tensors)
        leaf = program.only
        result = _create(leaf.size, leaf.dtype)
        result.untyped_storage().buffer = Buffer(outputs[0], leaf.spec, origin(program))  # type: ignore[attr-defined]
        return result

    return kernel


_TORCH_PRECISION = {"highest": "highest", "high": "high", "medium": "default"}
_create = torch._C._acc.create_empty_tensor
_operations: dict[Any, Callable[..., Any]] = {}


def _letter(a: Tensor) -> str:
    return "c" if a.is_complex() else "f" if a.is_floating_point() else "i"


def _exact(a: Any) -> Any:
    return (type(a), a) if isinstance(a, bool | int | float | complex) else a


def _kind(a: Any) -> int:
    if isinstance(a, Tensor):
        return TENSOR
    if isinstance(a, list) and a and isinstance(a[0], Tensor):
        return TENSORS
    return NUMBER if type(a) is float else STATIC


class _Positions:
    def __init__(self) -> None:
        self.tensor = 0
        self.numbers = {"f": 0, "i": 0, "c": 0}

    def next_number(self, letter: str, dtype: np.dtype | None, scalar: bool) -> NumberSlot:
        slot = NumberSlot(letter, self.numbers[letter], sum(self.numbers.values()), dtype, scalar)
        self.numbers[letter] += 1
        return slot


def _template(kind: int, a: Any, position: _Positions) -> Any:
    if a is None:
        return None
    if kind == TENSOR and isinstance(a, Tensor):
        if a.device.type == "cpu" and a.dim() == 0:
            return position.next_number(_letter(a), to_numpy(a.dtype), False)
        position.tensor += 1
        return Slot(position.tensor - 1)
    if kind <= NUMBER:
        letter = _letter_of(type(a))
        return position.next_number(letter, None, kind == NUMBER) if letter else a
    if kind in (TENSORS, NUMBERS):
        inner = TENSOR if kind == TENSORS else NUMBER
        return [_template(inner, item, position) for item in a]
    return a


def _results(program: Program, outputs: Any, tensors: list[Tensor]) -> Any:
    iterator = iter(outputs)
    results = [
        None if leaf is None else _wrap(leaf, next(iterator), program) for leaf in program.leaves
    ]
    return program.structure(results, tensors)


def _wrap(leaf: Fresh, array: Any, program: Program) -> Tensor:
    result = wrap_result(leaf, array)
    result.untyped_storage().buffer.origin = origin(program)  # type: ignore[attr-defined]
    return result


def _plain_structure(results: list[Any], tensors: list[Tensor]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def tuple_of(results: list[Any], tensors: list[Tensor]) -> Any:
    """Structure of an operator with several results."""
    return tuple(results)


def list_of(results: list[Any], tensors: list[Tensor]) -> Any:
    """Structure of an operator that returns a list."""
    return results


def _nothing(results: list[Any], tensors: list[Tensor]) -> None:
    return None


def _own(buffer: Buffer) -> None:
    """Make sure that nobody but the buffer holds its array, which is about to be donated."""
    import sys

    array = buffer.array
    # The buffer, the local name, and getrefcount's own argument.
    if sys.getrefcount(array) > 3 and not isinstance(array, jax.core.Tracer):
        buffer.array = array.copy()


def _generator_in(kinds: tuple[int, ...], args: tuple[Any, ...]) -> Any:
    for kind, a in zip(kinds, args, strict=False):
        if kind == GENERATOR:
            return a
    return None


def _type_name(dtype: torch.dtype) -> str:
    return _TYPE_NAMES.get(dtype, str(dtype))


_TYPE_NAMES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}


def _warn_resize(old: Any, new: Any) -> None:
    import warnings

    warnings.warn(
        f"An output with one or more elements was resized since it had shape {list(old)}, which does not "
        f"match the required output shape {list(new)}. This behavior is deprecated, and in a future "
        "PyTorch release outputs will not be resized unless they have zero elements. You can explicitly "
        "reuse an out tensor t by resizing it, inplace, to zero elements with t.resize_(0).",
        stacklevel=4,
    )


def operation_of(op: torch._ops.OpOverload) -> Any:
    """The Operation of an overload, made at its first use."""
    operation = _operations.get(op)
    if operation is None:
        from .fallback import find

        operation = _operations[op] = find(op)
    return operation
