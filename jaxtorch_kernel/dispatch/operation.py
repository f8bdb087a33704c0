"""One operator on the device: describe the call, find its program, run it, wrap what comes out.

`Operation.__call__` is the hot path; a cached call of it must cost about what JAX's own jitted call costs. It
does no more than build a key, look it up and call the executable. Everything else is behind a cache miss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

from ..config import Options, config
from ..lowerings.registry import Lowering
from ..storage import placement
from ..storage.buffer import Buffer, buffer_of
from ..storage.dtypes import to_numpy
from . import tracing
from .errors import explain
from .meta import call_meta
from .numbers import operand
from .program import (
    Fresh,
    NumberSlot,
    Program,
    Slot,
    build_lock,
    flatten,
    number_operands,
    single,
    wrap_result,
)
from .site import printing
from .schema import GENERATOR, NUMBER, NUMBERS, STATIC, TENSOR, TENSORS, Signature, short_name

Tensor = torch.Tensor
_default_dtype = torch.get_default_dtype

class _Call:
    """A call taken apart: what the key, the program and the run need of it."""

    __slots__ = ("buffers", "key", "numbers", "tensors")

    def __init__(self, key: list[Any]):
        self.key = key
        self.tensors: list[Tensor] = []
        self.buffers: list[Buffer] = []
        self.numbers: list[tuple[str, Any]] = []


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
        self.special = bool(self.written) or lowering.random or op is None

    # -- the hot path ---------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            assert self.signature is not None
            args = self.signature.complete(args, kwargs)
        key: list[Any] = [config._base if not config._open else config.options(), _default_dtype()]
        tensors: list[Tensor] = []
        buffers: list[Buffer] = []
        call: _Call | None = None
        kinds = self.kinds
        if self.op is None:
            kinds = tuple(_kind(a) for a in args)
        for kind, a in zip(kinds, args, strict=False):
            if kind == TENSOR and isinstance(a, Tensor):
                storage = a.untyped_storage()
                buffer = getattr(storage, "buffer", None)
                if buffer is not None:
                    tensors.append(a)
                    buffers.append(buffer)
                    key += (buffer.spec, a.dtype, a.shape, a.stride())
                    continue
            if call is None:
                call = _Call(key)
                call.tensors = tensors
                call.buffers = buffers
            self._describe(kind, a, call)
        numbers = call.numbers if call is not None else ()
        if self.special:
            return self._special(args, key, tensors, buffers, numbers)
        program = self.programs.get(tuple(key))
        if program is None:
            if printing() and self.op is not None:
                return self._on_cpu(args)
            program = self._build(args, key, tensors, buffers, numbers)
        if program.single and not numbers and not program.checked and not tracing.depth:
            call_compiled = program._call or program.compiled()
            try:
                (out,) = call_compiled(*[b.array for b in buffers])
            except jax.errors.JaxRuntimeError as error:
                raise explain(error, self.name) from None
            leaf = program.only
            result = _create(leaf.size, leaf.dtype)
            result.untyped_storage().buffer = Buffer(out, leaf.spec, program)
            return result
        operands = [b.array for b in buffers]
        outputs = self._run(program, args, key, tensors, buffers, numbers, operands)
        return _results(program, outputs, tensors)

    # -- describing -------------------------------------------------------------------------------------------------

    def _describe(self, kind: int, a: Any, call: _Call) -> None:
        key = call.key
        if a is None:
            key.append(None)
        elif kind == TENSOR and isinstance(a, Tensor):
            self._describe_tensor(a, call)
        elif kind == NUMBER or kind == TENSOR:
            # torch hands a Python number in a tensor's place over as what it is.
            self._describe_number(a, call)
        elif kind == TENSORS or kind == NUMBERS:
            key.append(len(a))
            inner = TENSOR if kind == TENSORS else NUMBER
            for item in a:
                self._describe(inner, item, call)
        elif kind == STATIC:
            # 1 == 1.0 == True, and they are different programs.
            key.append(tuple(map(_exact, a)) if isinstance(a, list | tuple) else _exact(a))

    def _describe_number(self, a: Any, call: _Call) -> None:
        kind = _NUMBER_KINDS.get(type(a))
        if kind is None:
            call.key.append(_exact(a))
        else:
            call.key.append(kind)
            call.numbers.append((kind, a))

    def _describe_tensor(self, a: Tensor, call: _Call) -> None:
        device = a.device.type
        if device == "jax":
            buffer = buffer_of(a)
            call.tensors.append(a)
            call.buffers.append(buffer)
            call.key += (buffer.spec, a.dtype, a.shape, a.stride())
        elif a.dim() == 0 and device == "cpu":
            call.key += ("0-dim", a.dtype)
            call.numbers.append((_letter(a), a.item()))
        elif self.copy_cpu and device == "cpu":
            self._describe_tensor(a.to("jax"), call)
        else:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"jax:0 and {a.device}! (in {self.name}) Move one of them: `.to('jax')` or `.cpu()`."
            )

    # -- writes and random numbers -----------------------------------------------------------------------------------

    def _special(
        self,
        args: tuple[Any, ...],
        key: list[Any],
        tensors: list[Tensor],
        buffers: list[Buffer],
        numbers: Any,
    ) -> Any:
        if self.written and len(buffers) > 1:
            key.append(tuple([buffers.index(b) for b in buffers]))
        if self.lowering.random or not buffers:
            key.append(placement.index())
        program = self.programs.get(tuple(key))
        if program is None:
            if printing() and self.op is not None:
                return self._on_cpu(args)
            if self.signature is not None and self.signature.is_out and self._resize_outputs(args):
                return self(*args)
            program = self._build(args, key, tensors, buffers, numbers)
        if program.written:
            for i in program.targets:
                _own(buffers[i])
        operands = [buffers[i].array for i in program.unique]
        generator = None
        if self.lowering.random:
            from ..device.rng import source

            generator = source(_generator_in(self.kinds, args))
            operands.insert(0, generator.key)
        outputs = self._run(program, args, key, tensors, buffers, numbers, operands)
        if generator is not None:
            *outputs, generator.key = outputs
        if not program.written:
            return _results(program, outputs, tensors)
        for i, array, spec in zip(program.targets, outputs, program.new_specs, strict=True):
            buffers[i].write(array, spec)
        return program.structure([], tensors)

    def _on_cpu(self, args: tuple[Any, ...]) -> Any:
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
        key: list[Any] = [config.options(), _default_dtype()]
        call = _Call(key)
        for kind, a in zip(self.kinds, args, strict=False):
            self._describe(kind, a, call)
        program = self._build(tuple(args), key, call.tensors, call.buffers, call.numbers, False)
        return [(leaf.size, leaf.dtype) for leaf in program.leaves if leaf is not None]

    # -- a cache miss ---------------------------------------------------------------------------------------------

    def _build(
        self,
        args: tuple[Any, ...],
        key: list[Any],
        tensors: list[Tensor],
        buffers: list[Buffer],
        numbers: Any,
        keep: bool = True,
        gather: bool = False,
    ) -> Program:
        with build_lock:
            frozen = tuple(key)
            program = self.programs.get(frozen)
            if program is not None:
                return program
            options: Options = key[0]
            kinds = self.kinds if self.op is not None else tuple(_kind(a) for a in args)
            given = len(args)
            if self.signature is not None:
                args = self.signature.complete(args, {})
            position = _Positions()
            # An argument left at its default is no operand: the key shows that it was left out.
            template = [
                _template(kind if i < given else STATIC, a, position)
                for i, (kind, a) in enumerate(zip(kinds, args, strict=True))
                if kind != GENERATOR
            ]
            written, structure = self._effects(kinds, args, tensors)
            if self.signature is not None and self.signature.is_out:
                outs = set(self.written)
                generators = [i for i, k in enumerate(kinds) if k == GENERATOR]
                kept = [i for i in range(len(args)) if i not in generators]
                template = [t for i, t in zip(kept, template, strict=True) if i not in outs]
            metas = self._metas(kinds, args)
            precision = options.matmul_precision or _TORCH_PRECISION.get(
                torch.get_float32_matmul_precision()
            )
            program = Program(
                self.name,
                self.lowering,
                template,
                tensors,
                buffers,
                [kind for kind, _ in numbers],
                metas,
                written,
                precision,
                gather,
                structure,
            )
            if keep:
                self.programs[frozen] = program
            return program

    def _metas(self, kinds: tuple[int, ...], args: tuple[Any, ...]) -> Any:
        signature = self.signature
        if signature is None or not self.lowering.meta:
            return None
        if not signature.written:
            return call_meta(signature.op, signature, args)
        if signature.is_out:
            return None  # checked in `_resize_outputs`, with the functional overload
        functional = signature.functional
        if functional is None:
            call_meta(signature.op, signature, args)
            return None
        result = call_meta(functional, Signature(functional), args)
        self._check_in_place(result, args)
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
        self, kinds: tuple[int, ...], args: tuple[Any, ...], tensors: list[Tensor]
    ) -> tuple[list[int], Callable[[list[Any], list[Tensor]], Any]]:
        """Which described tensors are written, and how the operator's return value is put together."""
        signature = self.signature
        if signature is None:
            return [], _plain_structure
        if not signature.written:
            lists = signature.returns_list
            if lists == (False,):
                return [], single
            return [], (list if lists == (True,) else tuple_of)  # type: ignore[return-value]
        ids = {id(t): i for i, t in enumerate(tensors)}
        written = [
            ids[id(t)]
            for i in signature.written
            for t in flatten(list(args[i]) if isinstance(args[i], list | tuple) else args[i])
            if t is not None
        ]
        count = len(signature.op._schema.returns)
        if count == 0:
            return written, _nothing
        if signature.returns_list == (True,):
            return written, lambda _, ts: [ts[i] for i in written]
        if count == 1:
            only = written[0]
            return written, lambda _, ts: ts[only]
        return written, lambda _, ts: tuple(ts[i] for i in written)

    def _run(
        self,
        program: Program,
        args: tuple[Any, ...],
        key: list[Any],
        tensors: list[Tensor],
        buffers: list[Buffer],
        numbers: Any,
        operands: list[Any],
    ) -> Any:
        """Call the executable, or inline the function where a trace is running."""
        if program.checked:
            starts: list[int] = []
            for i, p in program.checked:
                own = p.starts(tensors[i].storage_offset())
                if own is None:
                    key.append("gather")
                    program = self._build(args, key, tensors, buffers, numbers, gather=True)
                    return self._run(program, args, key, tensors, buffers, numbers, operands)
                starts += own
            if program.views:
                operands.append(np.array(starts, np.int32))
        if numbers:
            operands += number_operands(program.number_kinds, numbers)
        if tracing.depth and tracing.is_traced(operands):
            with jax.enable_x64(True):
                return program.function(*operands)
        try:
            return (program._call or program.compiled())(*operands)
        except jax.errors.JaxRuntimeError as error:
            raise explain(error, self.name) from None


_NUMBER_KINDS = {int: "i", float: "f", complex: "c"}
_TORCH_PRECISION = {"highest": "highest", "high": "high", "medium": "default"}
_create = torch._C._acc.create_empty_tensor
_operations: dict[Any, Operation] = {}


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

    def next_number(self, kind: str, dtype: np.dtype | None = None) -> NumberSlot:
        slot = NumberSlot(kind, self.numbers[kind], dtype)
        self.numbers[kind] += 1
        return slot


def _template(kind: int, a: Any, position: _Positions) -> Any:
    if a is None:
        return None
    if kind == TENSOR and isinstance(a, Tensor):
        if a.device.type == "cpu" and a.dim() == 0:
            return position.next_number(_letter(a), to_numpy(a.dtype))
        position.tensor += 1
        return Slot(position.tensor - 1)
    if kind == NUMBER or kind == TENSOR:
        letter = _NUMBER_KINDS.get(type(a), "")
        return position.next_number(letter) if letter else a
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
    result.untyped_storage().buffer.origin = program  # type: ignore[attr-defined]
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
