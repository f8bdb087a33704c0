"""One entry of PyTorch's operator database on the jax device against the CPU.

The CPU is the oracle, sample by sample: a sample that the CPU refuses is left out, and so is an entry with no sample
left. Tolerances are torch's own: `torch.testing.assert_close`'s for the dtype, widened only by the overrides that the
entry itself declares for torch's `TestCommon`. An operator whose CPU result depends on the seed (or is uninitialized
memory) is compared by shape, dtype and device.

Three kinds are about captured code: "pure" and "pure-backward" run each sample through `jaxtorch.pure`, as a program
of its own; "tpu" compiles the program of the first sample that has elements for a TPU v5e by libtpu, and runs nothing.

"errors" is about wrong inputs, which the entries come with: the device raises the same kind of exception as the CPU.
"""

from __future__ import annotations

import functools
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

os.environ.setdefault("PYTORCH_TESTING_DEVICE_ONLY_FOR", "cpu")

from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

import jaxtorch
from jaxtorch.programs import stats

# The database runs its samplers under one seed of its own, which would make their CPU results look deterministic.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)

SAMPLES = 10

# kind -> dtype of the samples: the first that the entry takes
KINDS = {
    "forward": (torch.float32,),
    "int64": (torch.int64,),
    "bfloat16": (torch.bfloat16,),
    "backward": (torch.float32,),
    "in-place": (torch.float32,),
    "out": (torch.float32,),
    "non-contiguous": (torch.float32,),
    "pure": (torch.float32, torch.int64),
    "pure-backward": (torch.float32,),
    "tpu": (torch.float32, torch.int64),
    "errors": (torch.float32,),  # of an error input torch chooses the dtype
}
CAPTURED = ("pure", "pure-backward", "tpu")
BACKWARD = ("backward", "pure-backward")
TARGET = "v5e:1x1"


@dataclass
class Outcome:
    """What one entry did in one kind of check.

    Attributes:
        status: "pass", "fail", or "none" where the CPU itself runs no sample.
        via: "lowering", "decomposition" or "cpu": the least direct way that any operator took.
        error: the first failing sample's message.
    """

    status: str
    via: str = "lowering"
    error: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def entry_name(op: OpInfo) -> str:
    """The entry's name, variant included, as torch prints it."""
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


@functools.cache
def entries() -> dict[str, OpInfo]:
    """All entries by name."""
    return {entry_name(op): op for op in op_db}


def tolerance(op: OpInfo, dtype: torch.dtype) -> dict[str, float]:
    """The widest override that the entry declares for TestCommon, or nothing."""
    widest: dict[str, float] = {}
    for decorator in op.decorators:
        if getattr(decorator, "cls_name", None) not in ("TestCommon", None):
            continue
        for inner in getattr(decorator, "decorators", [decorator]):
            if isinstance(inner, toleranceOverride) and dtype in inner.d:
                t = inner.d[dtype]
                widest["atol"] = max(widest.get("atol", 0.0), t.atol)
                widest["rtol"] = max(widest.get("rtol", 0.0), t.rtol)
    return widest


def _to(device: str) -> Callable[[Any], Any]:
    def move(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        source = x.detach()
        if source.layout == torch.strided and not source.is_contiguous():
            # `.to` and `clone` keep dense strides only; a sample's gaps and overlaps are part of it.
            moved = _strided_copy(source, device)
        else:
            moved = source.to(device, copy=True)
        return moved.requires_grad_(x.requires_grad)

    return move


def _strided_copy(x: torch.Tensor, device: str) -> torch.Tensor:
    if 0 in x.shape:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
    count = (
        x.storage_offset() + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1
    )
    plain = x.conj() if x.is_conj() else x
    row = plain.as_strided((count,), (1,), 0).to(device, copy=True)
    view = row.as_strided(x.shape, x.stride(), x.storage_offset())
    return view.conj() if x.is_conj() else view


def on(op: OpInfo, sample: SampleInput, device: str) -> SampleInput:
    """The sample's tensors as fresh leaves on a device."""
    moved = sample.transform(_to(device))
    if (
        op.name == "tensor_split"
    ):  # torch wants its tensor of split points on the CPU, whatever the device
        moved.args = tuple(a.cpu() if isinstance(a, torch.Tensor) else a for a in moved.args)
    if "device" in moved.kwargs:  # factories
        moved.kwargs = {**moved.kwargs, "device": device}
    # `to` names its device by position.
    moved.args = tuple(device if isinstance(a, str) and a == "cpu" else a for a in moved.args)
    return moved


def dtype_of(op: OpInfo, kind: str) -> torch.dtype | None:
    """The dtype of an entry's samples for a kind of check; None where the entry takes none of the kind's."""
    taken = op.supported_backward_dtypes("cpu") if kind in BACKWARD else op.supported_dtypes("cpu")
    return next((dtype for dtype in KINDS[kind] if dtype in taken), None)


def samples(op: OpInfo, kind: str, dtype: torch.dtype) -> Iterator[SampleInput]:
    """The first samples of an entry for a kind of check."""
    torch.manual_seed(0)
    iterator = iter(op.sample_inputs("cpu", dtype, requires_grad=kind in BACKWARD))
    if kind == "tpu":  # of empty tensors little is left to compile
        iterator = iter(sorted(itertools.islice(iterator, SAMPLES), key=_is_empty))
    for _, sample in zip(range(SAMPLES), iterator, strict=False):
        if kind == "non-contiguous":
            try:
                sample = sample.noncontiguous()
            except RuntimeError:  # a sparse sample has no other layout
                continue
        yield sample


def _is_empty(sample: SampleInput) -> bool:
    return not all(t.numel() for t in tensors_of((_inputs(sample), sample.kwargs)))


def writes(op: OpInfo, sample: SampleInput) -> bool:
    """Whether the entry changes what it is given."""
    given = on(op, sample, "cpu")
    op(*_inputs(given), **given.kwargs)
    return not _same((_inputs(given), given.kwargs), (_inputs(sample), sample.kwargs))


def captured(op: OpInfo, copies: bool) -> Any:
    """The entry as pure code, perhaps of copies made inside: pure code may not write to its arguments."""

    def on_copies(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
        return op(*args, **kwargs)

    return jaxtorch.pure(on_copies if copies else op.op)


def call(op: OpInfo, kind: str, sample: SampleInput, function: Any = None) -> Any:
    """Run the entry as this kind of check does, on whatever device the sample is.

    Args:
        function: what runs in the entry's place.
    """
    if kind == "in-place":
        variant = op.get_inplace()
        target = sample.input.clone()
        result = variant(target, *sample.args, **sample.kwargs)
        return result, target
    result = (function or op)(*_inputs(sample), **sample.kwargs)
    result = sample.output_process_fn_grad(result)
    if kind in BACKWARD:
        return gradients(result, sample, kind == "pure-backward")
    return result


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Every tensor in nested containers."""
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def gradients(result: Any, sample: SampleInput, zeros: bool) -> Any:
    """Result and gradients with respect to every leaf that asks for one, for fixed cotangents.

    Args:
        zeros: where torch says that there is no gradient, JAX has one of zeros: take zeros for both.
    """
    outputs = [t for t in tensors_of(result) if t.requires_grad]
    leaves = [t for t in tensors_of((sample.input, sample.args, sample.kwargs)) if t.requires_grad]
    if not outputs:
        raise _NothingToCheck
    generator = torch.Generator().manual_seed(1)
    cotangents = [
        torch.randn(o.shape, generator=generator, dtype=o.dtype).to(o.device) for o in outputs
    ]
    grads = torch.autograd.grad(
        outputs, leaves, cotangents, allow_unused=True, materialize_grads=zeros
    )
    return [o.detach() for o in outputs], list(grads)


class _NothingToCheck(Exception):
    pass


def applies(op: OpInfo, kind: str) -> bool:
    """Whether the entry claims to support this kind on the CPU."""
    if dtype_of(op, kind) is None:
        return False
    if kind in BACKWARD:
        return op.supports_autograd
    if kind == "in-place":
        return op.get_inplace() is not None
    if kind == "out":
        return op.supports_out
    return True


def compare(actual: Any, expected: Any, values: bool, **tolerances: float) -> None:
    """Raise AssertionError where they differ."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor), f"a {type(actual)} for a tensor"
        assert actual.device.type == "jax", f"the result is on {actual.device}"
        assert actual.shape == expected.shape, f"{actual.shape} for {expected.shape}"
        assert actual.dtype == expected.dtype, f"{actual.dtype} for {expected.dtype}"
        if values:
            torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, **tolerances)
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), f"{len(actual)} results for {len(expected)}"
        for a, e in zip(actual, expected, strict=True):
            compare(a, e, values, **tolerances)
    elif isinstance(expected, dict):
        for k in expected:
            compare(actual[k], expected[k], values, **tolerances)
    elif values:
        torch.testing.assert_close(actual, expected, equal_nan=True, **tolerances)


def _same(a: Any, b: Any) -> bool:
    for x, y in zip(tensors_of(a), tensors_of(b), strict=True):
        if x.shape != y.shape or not torch.equal(x.nan_to_num(), y.nan_to_num()):
            return False
    return True


def _seeded(seed: int, run: Callable[[], Any]) -> Any:
    torch.manual_seed(seed)
    return run()


def _deterministic(op: OpInfo, first: Any, run: Callable[[], Any]) -> bool:
    """Whether the CPU gives `first` for other seeds too: neither randomness nor uninitialized memory.

    Dropout of few elements has few outcomes, so that two seeds that agree would prove little.
    """
    return not op.name.startswith(("empty", "new_empty")) and all(
        _same(first, _seeded(seed, run)) for seed in range(3, 8)
    )


def reference(op: OpInfo, kind: str, sample: SampleInput) -> tuple[Any, bool]:
    """The CPU's result, and whether its values can be compared."""

    def run() -> Any:
        return call(op, kind, on(op, sample, "cpu"))

    first = _seeded(2, run)
    return first, _deterministic(op, first, run)


def check_out(op: OpInfo, sample: SampleInput) -> bool:
    """`out=` of the right size, of size 0, and strided; False where the CPU takes no `out=`."""
    expected = op(*_inputs(on(op, sample, "cpu")), **sample.kwargs)
    if not isinstance(expected, torch.Tensor | tuple):
        return False
    single = isinstance(expected, torch.Tensor)
    wanted = [expected] if single else list(expected)

    def run(device: str, make: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        moved = on(op, sample, device)
        outs = [make(torch.empty_like(w, device=device)) for w in wanted]
        op(*_inputs(moved), **moved.kwargs, out=outs[0] if single else tuple(outs))
        return outs

    makers: list[Callable[[torch.Tensor], torch.Tensor]] = [
        torch.clone,
        lambda o: o.new_empty(0),
        lambda o: o.new_empty((*o.shape, 2))[..., 0],
    ]
    checked = False
    for make in makers:
        try:
            on_cpu = _seeded(2, lambda make=make: run("cpu", make))  # type: ignore[misc]
        except Exception:
            continue
        checked = True
        values = _deterministic(op, on_cpu, lambda make=make: run("cpu", make))  # type: ignore[misc]
        compare(run("jax", make), on_cpu, values, **tolerance(op, torch.float32))
    return checked


def compile_for_tpu(op: OpInfo, sample: SampleInput, copies: bool) -> None:
    """Compile the sample's program, which is not run: there is no TPU."""
    moved = on(op, sample, "jax")
    captured(op, copies).lower(*_inputs(moved), target=TARGET, **moved.kwargs).compile()


def _inputs(sample: SampleInput) -> tuple[Any, ...]:
    return (sample.input, *sample.args)


def check(name: str, kind: str) -> Outcome:
    """Check one entry in one kind; stops at the first sample that differs."""
    op = entries()[name]
    if kind == "errors":
        return check_errors(op)
    if not applies(op, kind):
        return Outcome("none")
    dtype = dtype_of(op, kind)
    assert dtype is not None
    stats.reset()
    checked = copies = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, sample in enumerate(samples(op, kind, dtype)):
            try:
                expected, values = (None, True) if kind == "out" else reference(op, kind, sample)
            except Exception:
                continue
            try:
                if kind == "out":
                    checked |= check_out(op, sample)
                    continue
                torch.manual_seed(2)
                copies = copies or (kind in CAPTURED and writes(op, sample))
                if kind == "tpu":
                    compile_for_tpu(op, sample, copies)
                    return Outcome("pass", _via())
                function = captured(op, copies) if kind in CAPTURED else op
                actual = call(op, kind, on(op, sample, "jax"), function)
                compare(actual, expected, values, **tolerance(op, dtype))
                checked = True
            except Exception as error:
                text = f"sample {i}: {type(error).__name__}: {error}"
                return Outcome("fail", _via(), text[:600])
    return Outcome("pass" if checked else "none", _via())


def error_inputs(op: OpInfo) -> Iterator[tuple[int, SampleInput, Exception]]:
    """The inputs that an entry says are wrong and the CPU refuses, numbered, and the CPU's error."""
    if op.error_inputs_func is None:
        return
    torch.manual_seed(0)
    for i, wrong in enumerate(op.error_inputs("cpu")):
        error = raised(op, wrong.sample_input, "cpu")
        if error is not None:  # else it is refused elsewhere, or for a variant alone
            yield i, wrong.sample_input, error


def raised(op: OpInfo, sample: SampleInput, device: str) -> Exception | None:
    """What a call raises."""
    try:
        moved = on(op, sample, device)
        op(*_inputs(moved), **moved.kwargs)
    except Exception as error:
        return error
    return None


def wrong_errors(op: OpInfo) -> tuple[int, list[str]]:
    """The number of an entry's error inputs, and those for which the device raises no error or one of another kind."""
    count, wrong = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, sample, expected in error_inputs(op):
            count += 1
            actual = raised(op, sample, "jax")
            if type(actual) is not type(expected):
                wrong.append(f"error input {i}: {actual!r} for {expected!r}"[:600])
    return count, wrong


def check_errors(op: OpInfo) -> Outcome:
    """Check an entry's error inputs."""
    stats.reset()
    count, wrong = wrong_errors(op)
    if wrong:
        return Outcome("fail", _via(), wrong[0])
    return Outcome("pass" if count else "none", _via())


def _via() -> str:
    if stats.fallbacks():
        return "cpu"
    return "decomposition" if stats.decompositions() else "lowering"
