"""One entry of PyTorch's operator database on the jax device against the CPU.

The CPU is the oracle, sample by sample: a sample that the CPU refuses is left out, and so is an entry with no sample
left. `comparison.py` says when two results agree. An operator whose CPU result depends on the seed (or is uninitialized
memory) is compared by shape, dtype and device.

Four kinds are about captured code: "pure" and "pure-backward" run each sample through `jaxtorch.pure`, as a program
of its own; "tpu" and "tpu-backward" compile the program of the first sample that has elements, the second with its
gradients, for a TPU v5e by libtpu, and run nothing.

"errors" is about wrong inputs, which the entries come with (`wrong_inputs.py`).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._python_dispatch import TorchDispatchMode

import jaxtorch
from jaxtorch.capture.errors import CaptureError
from jaxtorch.programs import stats

from .comparison import compare, tolerance
from .database import (
    BACKWARD,
    CAPTURED,
    TPU,
    WIDE,
    applies,
    dtype_of,
    entries,
    inputs,
    on,
    samples,
    tensors_of,
)
from .wrong_inputs import wrong_errors

TARGET = "v5e:1x1"


@dataclass
class Outcome:
    """What one entry did in one kind of check.

    Attributes:
        status: "pass", "fail", "none" where the CPU itself runs no sample, or "values" where capture refuses code whose
            sizes or Python values depend on a tensor's values, by torch's own mark.
        via: "lowering", "decomposition" or "cpu": the least direct way that any operator took.
        error: the first failing sample's message.
    """

    status: str
    via: str = "lowering"
    error: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def writes(op: OpInfo, sample: SampleInput) -> bool:
    """Whether the entry changes what it is given."""
    given = on(op, sample, "cpu")
    op(*inputs(given), **given.kwargs)
    return not _same((inputs(given), given.kwargs), (inputs(sample), sample.kwargs))


def on_copies(op: OpInfo) -> Callable[..., Any]:
    """The entry of copies of its arguments: pure code may not write to its arguments."""

    def function(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
        return op(*args, **kwargs)

    return function


def captured(op: OpInfo, copies: bool) -> Any:
    """The entry as pure code, perhaps of copies made inside."""
    return jaxtorch.pure(on_copies(op) if copies else op.op)


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
    result = (function or op)(*inputs(sample), **sample.kwargs)
    result = sample.output_process_fn_grad(result)
    if kind in BACKWARD:
        return gradients(result, sample, kind in CAPTURED)
    return result


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

    def cotangent(o: torch.Tensor) -> torch.Tensor:  # the same numbers for each width
        narrow = torch.complex64 if o.is_complex() else torch.float32
        drawn = torch.randn(o.shape, generator=generator, dtype=narrow)
        return drawn.to(o.device, o.dtype)

    cotangents = [cotangent(o) for o in outputs]
    grads = torch.autograd.grad(
        outputs, leaves, cotangents, allow_unused=True, materialize_grads=zeros
    )
    return [o.detach() for o in outputs], list(grads)


class _NothingToCheck(Exception):
    pass


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


def needs_values(op: OpInfo, sample: SampleInput) -> bool:
    """Whether torch marks an operator of the entry: its sizes or Python values depend on a tensor's values."""

    class Watch(TorchDispatchMode):
        found = False

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            marks = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
            self.found |= any(mark in func.tags for mark in marks)
            return func(*args, **(kwargs or {}))

    given = on(op, sample, "cpu")
    with Watch() as watch:
        op(*inputs(given), **given.kwargs)
    return watch.found


def check_out(op: OpInfo, sample: SampleInput) -> bool:
    """`out=` of the right size, of size 0, and strided; False where the CPU takes no `out=`."""
    expected = op(*inputs(on(op, sample, "cpu")), **sample.kwargs)
    if not isinstance(expected, torch.Tensor | tuple):
        return False
    single = isinstance(expected, torch.Tensor)
    wanted = [expected] if single else list(expected)

    def run(
        device: str, make: Callable[[torch.Tensor], torch.Tensor], wide: bool = False
    ) -> list[torch.Tensor]:
        moved = on(op, sample, device, wide)
        dtypes = [WIDE.get(w.dtype, w.dtype) if wide else w.dtype for w in wanted]
        outs = [
            make(torch.empty_like(w, dtype=dtype, device=device))
            for w, dtype in zip(wanted, dtypes, strict=True)
        ]
        op(*inputs(moved), **moved.kwargs, out=outs[0] if single else tuple(outs))
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
        exact = functools.partial(run, "cpu", make, wide=True)
        compare(run("jax", make), on_cpu, values, exact, **tolerance(op, torch.float32))
    return checked


def compile_for_tpu(op: OpInfo, kind: str, sample: SampleInput, copies: bool) -> None:
    """Compile the sample's program, which is not run: there is no TPU."""
    moved = on(op, sample, "jax")
    if kind == "tpu":
        captured(op, copies).lower(*inputs(moved), target=TARGET, **moved.kwargs).compile()
        return

    function = on_copies(op) if copies else op.op

    def doubled(*args: Any, **kwargs: Any) -> Any:
        # A result that is a view of an argument would be no part of the program, nor its gradient.
        result = sample.output_process_fn_grad(function(*args, **kwargs))
        return [2 * t for t in tensors_of(result) if t.requires_grad]

    program = jaxtorch.pure(doubled)
    program.lower(*inputs(moved), target=TARGET, gradients=True, **moved.kwargs).compile()


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
                if kind in TPU:
                    compile_for_tpu(op, kind, sample, copies)
                    return Outcome("pass", _via())
                function = captured(op, copies) if kind in CAPTURED else op
                actual = call(op, kind, on(op, sample, "jax"), function)

                def exact(sample: SampleInput = sample) -> Any:
                    return call(op, kind, on(op, sample, "cpu", wide=True))

                compare(actual, expected, values, exact, **tolerance(op, dtype))
                checked = True
            except Exception as error:
                text = f"sample {i}: {type(error).__name__}: {error}"
                no_value = isinstance(error, CaptureError) and needs_values(op, sample)
                return Outcome("values" if no_value else "fail", _via(), text[:600])
    return Outcome("pass" if checked else "none", _via())


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
