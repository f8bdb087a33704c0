"""The compiled kernels give what the general path gives: values, kinds of tensors, errors, and nothing kept."""

from __future__ import annotations

import ctypes
import gc
import math
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import jaxtorch
from jaxtorch.dispatch.executable import count_calls
from jaxtorch.dispatch.operation import Operation, forget_programs
from jaxtorch.lowerings.registry import Lowering
from jaxtorch.native.loading import calls
from jaxtorch.operators.choice import operation_of
from jaxtorch.storage.buffer import buffer_of

from ..storage.test_view_kernels import CALLS as VIEWS
from . import COMPILED

pytestmark = COMPILED
aten = torch.ops.aten
Tensor = torch.Tensor


def of(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    numbers = torch.arange(math.prod(size), device="cpu").reshape(size)
    return (
        (numbers / 7 - 1).to(dtype).to("jax")
        if dtype.is_floating_point
        else numbers.to(dtype).to("jax")
    )


x, y, square = of(3, 4), of(3, 4) * 2, of(4, 4)
LONG = [of(3, n % 2 + 1) for n in range(20)]  # divided into parts
# An operator and its arguments: each kind of argument and of result.
CALLS: dict[str, tuple[Any, ...]] = {
    "two tensors": (aten.add.Tensor, (x, y)),
    "one tensor": (aten.relu.default, (x,)),
    "a tensor twice": (aten.mul.Tensor, (x, x)),
    "a float": (aten.mul.Tensor, (x, 2.5)),
    "an integer": (aten.mul.Tensor, (x, 3)),
    "zero": (aten.gt.Scalar, (x, 0)),
    "zero as a float": (aten.mul.Tensor, (x, 0.0)),
    "minus zero": (aten.mul.Tensor, (x, -0.0)),
    "not a number": (aten.mul.Tensor, (x, math.nan)),
    "a bool": (aten.mul.Tensor, (of(3, dtype=torch.int64), True)),
    "two numbers": (aten.clamp.default, (x, -0.5, 0.5)),
    "a number and None": (aten.clamp.default, (x, None, 0.5)),
    "numbers of two kinds": (aten.clamp.default, (x, -1, 0.5)),
    "an integer that is static": (aten.sum.dim_IntList, (x, [1], True)),
    "one of each default": (aten.gelu.default, (x,)),
    "a keyword with a number": (aten.add.Tensor, (x, y), {"alpha": 2}),
    "a keyword with another number": (aten.add.Tensor, (x, y), {"alpha": 2.5}),
    "a keyword with a text": (aten.gelu.default, (x,), {"approximate": "tanh"}),
    "another keyword with a text": (aten.div.Tensor_mode, (x, y + 3), {"rounding_mode": "floor"}),
    "a keyword with its default": (aten.gelu.default, (x,), {"approximate": "none"}),
    "a keyword with a dtype": (aten.sum.dim_IntList, (x, [1]), {"dtype": torch.float64}),
    "a keyword with a memory format": (
        aten.clone.default,
        (square,),
        {"memory_format": torch.contiguous_format},
    ),
    "a list of numbers": (aten._foreach_add.ScalarList, ([x, y], [2, 0.5])),
    "a long list of tensors": (aten._foreach_abs.default, (LONG,)),
    "a long list of tensors and a number": (aten._foreach_add.Scalar, (LONG, 2)),
    "a long list of numbers": (aten._foreach_add.ScalarList, (LONG, [*range(1, 21)])),
    "a list of tensors": (aten.cat.default, ([x, y], 1)),
    "a list of tensors and None": (aten.index.Tensor, (x, [None, of(2, dtype=torch.int64)])),
    "two results": (aten.max.dim, (x, 1)),
    "three results": (aten.native_layer_norm.default, (x, [4], None, None, 1e-5)),
    "a result that is not contiguous": (aten.clone.default, (x.t(),)),
    "results of other dtypes": (aten.topk.default, (x, 2)),
    "integers": (aten.add.Tensor, (of(3, dtype=torch.int32), of(3, dtype=torch.int64))),
    "doubles": (aten.exp.default, (of(3, dtype=torch.float64),)),
    "a view": (aten.add.Tensor, (x[1], y[2])),
    "a transposed view": (aten.mm.default, (square.t(), square)),
    "an expanded view": (aten.add.Tensor, (x[:, :1].expand(3, 4), y)),
    "nothing": (aten.add.Tensor, (of(0, 4), of(0, 4))),
    "no dimensions": (aten.add.Tensor, (of(), of())),
    "a large tensor": (aten.add.Tensor, (of(128, 128), of(128, 128))),
    "a tensor of the CPU without dimensions": (
        aten.add.Tensor,
        (x, torch.tensor(2.0, device="cpu")),
    ),
}


def facts(value: object) -> object:
    """Everything that a caller can see of results."""
    if isinstance(value, list | tuple):
        return type(value), [facts(v) for v in value]
    if not isinstance(value, Tensor):
        return value
    storage = value.untyped_storage()
    origin = buffer_of(value).origin
    return (
        *(type(value), value.dtype, value.device, value.shape, value.stride(), value.layout),
        *(value.storage_offset(), value.is_leaf, value.requires_grad),
        None if value.is_inference() else value._version,
        *(value.is_inference(), value.is_conj(), value.is_neg(), value._is_view()),
        *(type(storage), torch._C.StorageBase.nbytes(storage), storage.resizable()),
        *(
            type(buffer_of(value)),
            buffer_of(value).spec,
            origin and getattr(origin[0], "name", None),
        ),
        value.detach().resolve_conj().cpu().numpy().tobytes(),
    )


def called(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> list[Any]:
    """A call of an operator by its compiled kernel, and by its general path."""
    kernel = operation_of(op).kernel
    assert type(kernel) is calls.Kernel
    return [partial(way, *args, **(kwargs or {})) for way in (kernel, kernel.general)]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("inference", [False, True])
def test_a_known_call_gives_what_the_general_path_gives(name: str, inference: bool) -> None:
    call, general = called(*CALLS[name])
    with torch.no_grad(), torch.inference_mode(inference):
        expected = facts(general())
        for _ in range(4):  # compiled, known, its numbers known, its starts on the device
            assert facts(call()) == expected


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("inference", [False, True])
def test_a_dispatched_call_gives_what_the_general_path_gives(name: str, inference: bool) -> None:
    op, args, *rest = CALLS[name]
    kwargs: dict[str, Any] = rest[0] if rest else {}
    with torch.no_grad(), torch.inference_mode(inference):
        expected = facts(called(*CALLS[name])[1]())
        for _ in range(4):
            assert facts(op(*args, **kwargs)) == expected


ALWAYS_GENERAL = {"a tensor of the CPU without dimensions", "a bool"}
# Numbers that equal other numbers, or nothing: their operands are not looked up by value.
NO_NUMBER = {"zero as a float", "minus zero", "not a number"}
# These operators have a kernel over tensors.
NOT_DISPATCHED = ALWAYS_GENERAL | {
    *("a list of tensors and None", "a result that is not contiguous"),
    "a keyword with a memory format",
}


def in_python(call: Callable[[], object]) -> set[str]:
    """The files of ours whose functions a call runs. Large buffers count themselves in Python."""
    files: set[str] = set()

    def note(frame: Any, event: str, argument: object) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    ours = {name.rpartition("/jaxtorch/")[2] for name in files if "/jaxtorch/" in name}
    return ours - {"storage/buffer.py"}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_known_does_not_reach_the_general_path(name: str) -> None:
    """The rows of the table would say nothing if the kernels never took a call themselves."""
    op, args, *rest = CALLS[name]
    kwargs: dict[str, Any] = rest[0] if rest else {}
    call, _ = called(*CALLS[name])
    dispatched = partial(op, *args, **kwargs)
    with torch.no_grad():
        for way, general in ((call, ALWAYS_GENERAL), (dispatched, NOT_DISPATCHED)):
            for _ in range(4):
                way()
            assert bool(in_python(way)) == (name in general | NO_NUMBER), way


@pytest.mark.parametrize("name", sorted(set(VIEWS) - {"view_as_complex", "view_as_real"}))
def test_a_known_view_runs_no_python(name: str) -> None:
    a, b = (torch.arange(24.0, device=d).reshape(2, 3, 4) for d in ("jax", "cpu"))
    for _ in range(3):
        made, expected = VIEWS[name](a), VIEWS[name](b)
        for x, y in zip(
            *((v,) if isinstance(v, Tensor) else v for v in (made, expected)), strict=True
        ):
            assert (x.shape, x.stride(), x.storage_offset()) == (
                y.shape,
                y.stride(),
                y.storage_offset(),
            )
            assert x.tolist() == y.tolist()
    assert not in_python(lambda: VIEWS[name](a))


def test_lazily_conjugated_and_negated_tensors() -> None:
    def products(device: str) -> list[Tensor]:
        z = torch.complex(square.to(device), square.to(device) + 1)
        return [z @ z, z.conj() @ z, z @ z.conj(), z.conj().imag @ z.real]

    for _ in range(3):
        for a, b in zip(products("jax"), products("cpu"), strict=True):
            torch.testing.assert_close(a.cpu(), b)


def test_a_view_beyond_the_storage_is_refused_after_one_within() -> None:
    """The check of `as_strided` depends on the storage, not only on the tensor."""
    large, small = torch.arange(40.0, device="jax")[:12], torch.arange(12.0, device="jax")
    for _ in range(3):
        assert large.as_strided((20,), (1,)).shape == (20,)
        with pytest.raises(RuntimeError, match="out of bounds"):
            small.as_strided((20,), (1,))


def states() -> dict[str, Callable[[], Any]]:
    class Default:
        def __enter__(self) -> None:
            torch.set_default_dtype(torch.float64)

        def __exit__(self, *exc: object) -> None:
            torch.set_default_dtype(torch.float32)

    class Precision:
        def __enter__(self) -> None:
            torch.set_float32_matmul_precision("medium")

        def __exit__(self, *exc: object) -> None:
            torch.set_float32_matmul_precision("highest")

    return {
        "default dtype": Default,
        "matmul precision": Precision,
        "options": lambda: jaxtorch.config(matmul_precision="default"),
    }


@pytest.mark.parametrize("state", states())
def test_another_state_is_another_call(state: str) -> None:
    """`3 / 2` of integers has the default dtype; the precision is part of the program."""
    whole = of(3, dtype=torch.int64)
    rows = [(aten.div.Tensor, (whole, whole + 1)), (aten.mm.default, (square, square))]
    for op, arguments in rows:
        call, general = called(op, arguments)
        for _ in range(3):
            call()
        with states()[state]():
            expected = facts(general())
            assert facts(call()) == expected
            assert facts(call()) == expected
        assert facts(call()) == facts(general())


def test_numbers_that_are_equal_are_not_the_same() -> None:
    one = torch.ones(2, device="jax")
    for _ in range(3):
        assert torch.signbit(one * 0.0).tolist() == [False, False]
        assert torch.signbit(one * -0.0).tolist() == [True, True]
        whole = of(2, dtype=torch.int64)
        assert [(whole * n).dtype for n in (1, 1.0, True)] == [
            torch.int64,
            torch.float32,
            torch.int64,
        ]


def test_an_error_is_the_same_at_each_call() -> None:
    texts = set()
    for _ in range(3):
        with pytest.raises(RuntimeError) as caught:
            x + of(5)
        texts.add(str(caught.value))
    assert len(texts) == 1
    assert "must match the size" in texts.pop()


def test_a_number_that_does_not_fit_is_refused_after_one_that_did() -> None:
    for device in ("cpu", "jax"):
        half, mask = (
            torch.zeros(3, dtype=torch.float16, device=device),
            torch.ones(3, dtype=torch.bool, device=device),
        )
        for _ in range(3):
            assert half.masked_fill(mask, 2.0).tolist() == [2.0] * 3
        with pytest.raises(RuntimeError, match="without overflow"):
            half.masked_fill(mask, 1e6)


def test_captured_code_after_the_call_is_known() -> None:
    def twice(a: Tensor) -> Tensor:
        return a + a

    for _ in range(3):
        twice(x)
    captured = jaxtorch.pure(twice)
    assert captured(x).tolist() == twice(x).tolist()
    assert captured(y).tolist() == twice(y).tolist()


def test_what_is_known_is_bounded_and_forgotten() -> None:
    kernel = operation_of(aten.neg.default).kernel
    for _ in range(2):
        kernel(x)
    assert kernel.known
    forget_programs()
    assert not kernel.known
    assert kernel(x).tolist() == (-x.cpu()).tolist()
    line = torch.arange(5000.0, device="jax")
    for i in range(5000):  # more than the tables have
        assert line[i].storage_offset() == line[i:].storage_offset() == i


def test_a_kernel_that_nothing_holds_is_collected() -> None:
    operation = Operation(aten.neg.default, Lowering(lambda a: -a))
    for _ in range(3):
        operation.kernel(x)
    assert operation.kernel.known
    alive = weakref.ref(operation)
    del operation
    gc.collect()
    assert alive() is None


def test_a_kernel_that_was_cleared_raises() -> None:
    """The garbage collector clears what is in a cycle one by one, and freeing one of them may call another."""
    kernel = Operation(aten.neg.default, Lowering(lambda a: -a)).kernel
    for _ in range(3):
        kernel(x)
    slot = ctypes.pythonapi.PyType_GetSlot
    slot.restype, slot.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_int]
    tp_clear = 51  # https://github.com/python/cpython/blob/main/Include/typeslots.h
    clear = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object)(slot(type(kernel), tp_clear))
    assert clear(kernel) == 0
    with pytest.raises(ReferenceError, match="freed"):
        kernel(x)


def test_calls_keep_nothing() -> None:
    def step() -> None:
        for row in CALLS.values():
            called(*row)[0]()
        for view in (x.view(12), x.t(), x[1], *x.unbind()):
            del view

    for _ in range(4):
        step()
    counts = []
    for _ in range(3):
        for _ in range(5):
            step()
        torch.jax.synchronize()
        gc.collect()
        array = buffer_of(x).array
        counts.append(
            (len(gc.get_objects()), sys.getrefcount(array), sys.getrefcount(buffer_of(x).spec))
        )
    assert counts[0][1:] == counts[1][1:] == counts[2][1:]
    assert counts[2][0] - counts[1][0] < 50


def test_threads_that_make_the_first_calls_at_once() -> None:
    """Each thread may resolve the kernel and learn the call."""
    wrong: list[object] = []

    def work(operation: Operation, barrier: threading.Barrier) -> None:
        barrier.wait()
        for i in range(40):
            a = of(3 + i % 4)
            if operation.kernel(a, a).tolist() != [v * 2 for v in a.tolist()]:
                wrong.append(a)

    for _ in range(5):
        operation = Operation(aten.add.Tensor, Lowering(lambda a, b, alpha=1: a + b))
        barrier = threading.Barrier(8)
        threads = [threading.Thread(target=work, args=(operation, barrier)) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not wrong


def test_counting_is_switched_while_programs_run() -> None:
    """It replaces what a kernel is calling."""
    expected, done = (x.cpu() + y.cpu()).tolist(), threading.Event()

    def switch() -> None:
        while not done.is_set():
            count_calls(True)
            count_calls(False)

    thread = threading.Thread(target=switch)
    thread.start()
    try:
        assert all((x + y).tolist() == expected for _ in range(300))
    finally:
        done.set()
        thread.join()


def test_a_finalizer_that_calls_operators_in_a_call() -> None:
    """Making a result may start a garbage collection, and that runs code."""

    class Calls:
        def __del__(self) -> None:
            forget_programs()
            (x + y).tolist()

    thresholds = gc.get_threshold()
    for _ in range(30):
        loop: list[object] = [Calls()]
        loop.append(loop)  # garbage in a cycle
        del loop
        # Only while the calls run. Such a finalizer may end the process where jaxlib notes the stack
        # (docs/architecture.md, "Known limits").
        gc.set_threshold(1, 1, 1)
        try:
            total, row = x + y, x[1]
        finally:
            gc.set_threshold(*thresholds)
        assert total.tolist() == (x.cpu() + y.cpu()).tolist()
        assert row.tolist() == x.cpu()[1].tolist()


def test_the_line_of_a_call() -> None:
    results = [x + y for _ in range(3)]
    origins = [buffer_of(r).origin for r in results]
    assert None not in origins
    assert {origin[1].co_filename for origin in origins if origin} == {__file__}
    assert len({origin[2] for origin in origins if origin}) == 1


def test_a_tensor_without_a_buffer() -> None:
    """torch's C++ makes a storage of its own: it counts as zeros."""
    for _ in range(3):
        made = torch.empty(0, device="jax").new_empty(3).resize_(3)
        assert (made * 0 + of(3)).shape == (3,)


def test_ctrl_c_while_a_call_is_learned_is_not_lost(monkeypatch: Any) -> None:
    """What an ordinary exception may do there is nothing: the call itself has succeeded."""
    operation = Operation(aten.neg.default, Lowering(lambda a: -a))
    raised: list[type[BaseException]] = [KeyError, KeyboardInterrupt]

    def program_of(args: object) -> object:
        raise raised[0]

    operation.kernel(x)
    forget_programs()
    monkeypatch.setattr(operation, "program_of", program_of)
    assert operation.kernel(x).tolist() == (-x.cpu()).tolist()
    raised.pop(0)
    with pytest.raises(KeyboardInterrupt):
        operation.kernel(x)
