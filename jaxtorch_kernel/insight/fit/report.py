"""The fit report: whether a compiled program fits a chip, what it needs there, and an estimate of its time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ...base.units import duration, size
from ...capture.lowering import Executable, Lowered
from ...capture.tpu import CompileError
from ...capture.tpu_chips import Chip, chip_of, targets
from ..hlo.inferred import infer_origins
from ..hlo.module import read_module
from ..hlo.scopes import scope_of
from ..hlo.source import Sources
from ..programs import Location
from .findings import findings
from .inputs import inputs_of
from .memory import KindMemory, ModuleMemory, PeakBuffer, by_module, of_inputs, of_run
from .padding import HOST, in_space
from .peak import Peak
from .refused import is_out_of_memory, memory_of
from .roofline import Busy, Estimate
from .wide_types import WideWork, wide_work

_MOST = 40  # buffers that a report lists
_SMALL = 1 << 14  # bytes of padding that are not worth a line
_OF_MEMORY = (
    "The memory of temporaries, outputs and code is reported by the compiler. Gradients and activations are "
    "recognized by the place where values are made: in the forward pass, or in the backward pass with the sizes of a "
    "parameter.",
)
_OF_TIME = (
    "The time is a lower bound: matrix unit, memory and links work at their published peaks, at the same time where "
    "the schedule allows it, and instructions cost nothing to start.",
    "Elementwise arithmetic costs only the memory that it reads and writes; values in the chip's VMEM cost none.",
    "A collective runs over as few axes of the topology as have room for its chips, around a ring along each.",
)
_OF_REFUSED = (
    "The compiler refused the program, so its figures are the sizes of the inputs without padding, and the temporaries "
    "that the compiler's message states.",
)
_NO_TRIPS = "A loop whose number of iterations is not known counts once."
_KERNELS = (
    "A Pallas kernel without a `cost_estimate` counts only the memory that it reads and writes."
)


@dataclass(frozen=True)
class Time:
    """The estimated time of one run on each device, in seconds.

    Attributes:
        total: the time of one run.
        units: how long each unit works: "matrix unit", "HBM", and each kind of collective. They work at the same time.
        limits: how long the program waits for each of them. The sum is the total.
    """

    total: float
    units: Mapping[str, float]
    limits: Mapping[str, float]

    @property
    def bound(self) -> str:
        """What the program waits for most; "" if it waits for nothing."""
        return max(self.limits, key=lambda unit: self.limits[unit]) if self.total else ""


@dataclass(frozen=True)
class Part:
    """The estimated time of a line or a module.

    Attributes:
        name: the line as text, or the path of the module; "" for work without one.
        location: the source line; None for a module.
        seconds: its part of the total.
        units: the time of each unit, as in `Time`.
        flops: the operations of the matrix unit.
        bytes: the bytes moved from and to the device's memory.
    """

    name: str
    location: Location | None
    seconds: float
    units: Mapping[str, float]
    flops: float
    bytes: float


@dataclass(frozen=True, repr=False)
class Fit:
    """Whether a program fits a chip, and what it needs there. All figures are for one device.

    `print` shows the verdict and the findings. A notebook with the extension shows everything (`FitView`).

    Attributes:
        target: the TPU topology, or the kind of this machine's device.
        chip: the chip; None if nothing is known about the device.
        devices: the number of devices.
        fits: whether the memory is enough; True if it is unknown how much there is.
        hbm: the memory that programs can use, in bytes; None if unknown.
        used: the memory that this program uses, in bytes.
        memory: the memory by kind. The sum is `used`.
        modules: the memory of parameters and inputs by module.
        peak: the largest buffers when most memory is in use.
        time: the estimated time of one run; None if no rates of the device are known, or the program does not fit.
        lines, parts: the time by line and by module, most time first.
        utilization: `flops` as a share of what the matrix units could do in that time, in bfloat16.
        flops: operations of matrix products and convolutions in one run.
        multiplied: `flops`, counted once for each pass of the matrix unit.
        by_passes: the operations on float32 numbers whose precision torch's setting decides, by the number of passes.
        padding: the buffers at the peak that padding makes larger, most padding first.
        padded: the bytes of all padding at the peak.
        wide: the arithmetic on 64-bit numbers, by line.
        host: the bytes in the host's memory.
        findings: sentences that say what to do.
        assumptions: what the estimates assume.
    """

    target: str
    chip: Chip | None
    devices: int
    fits: bool
    hbm: float | None
    used: int
    memory: tuple[KindMemory, ...]
    modules: tuple[ModuleMemory, ...] = ()
    peak: tuple[PeakBuffer, ...] = ()
    time: Time | None = None
    lines: tuple[Part, ...] = ()
    parts: tuple[Part, ...] = ()
    utilization: float | None = None
    flops: float = 0.0
    multiplied: float = 0.0
    by_passes: dict[int, float] = field(default_factory=dict)
    padding: tuple[PeakBuffer, ...] = ()
    padded: int = 0
    wide: tuple[WideWork, ...] = ()
    host: int = 0
    findings: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = field(default=(), repr=False)

    @property
    def verdict(self) -> str:
        """One sentence: whether it fits, the memory, the time, and what limits it."""
        name = f"a TPU {self.chip.name}" if self.chip is not None else self.target
        chips = " per chip" if self.devices > 1 else ""
        if self.hbm is None:
            sentence = f"Takes {size(self.used)}{chips} on {name}"
        else:
            used, hbm = size(self.used), size(self.hbm)
            if self.fits:
                sentence = f"Fits {name}: {used} of {hbm}{chips}"
            else:
                sentence = f"Does not fit {name}: it needs {used}{chips}, but {hbm} are available"
        if self.time is None or not self.time.total:
            return sentence
        step = f"about {duration(self.time.total * 1e9)} a step (estimate)"
        return f"{sentence}; {step}, bound by {self.time.bound}"

    def __str__(self) -> str:
        return "\n".join((self.verdict, *self.findings))

    def __repr__(self) -> str:
        return f"<Fit: {self.verdict}>"


def fit(program: Executable | Lowered) -> Fit:
    """Report whether a compiled program fits its chip, how much memory it needs there, and about how long a run takes.

    Args:
        program: `lower(...).compile()` of a captured function or step. What `lower(...)` returns is compiled here; if
            the compiler refuses it because it does not fit, the report says so with what the compiler's message states.

    Returns:
        A `Fit`. Its figures are for one device.

    Raises:
        CompileError: the compiler rejects the program for another reason, or is not installed.
        TypeError: `program` is something else, such as the function itself.

    Example:
        >>> import torch, jaxtorch
        >>> f = jaxtorch.pure(lambda x: x @ x)
        >>> report = jaxtorch.fit(f.lower(torch.ones(256, 256, device="jax")).compile())
        >>> [(row.kind, row.bytes) for row in report.memory if row.bytes]
        [('inputs', 262144), ('outputs', 262144)]
    """
    if isinstance(program, Executable):
        report = _of_executable(program)
    elif not isinstance(program, Lowered):
        raise TypeError(
            "fit takes what `lower(...)` or `lower(...).compile()` of a captured function returns, not "
            f'{type(program).__name__}: write `jaxtorch.fit(step.lower(x, target="v5e:1x1"))`'
        )
    else:
        try:
            report = _of_executable(program.compile())
        except CompileError as error:
            if not is_out_of_memory(str(error)):
                raise
            report = _refused(program, str(error))
    return replace(report, findings=tuple(findings(report)))


def _of_executable(executable: Executable) -> Fit:
    # Copies and transposes of the compiler have no line. They count for the line that uses them.
    module = infer_origins(read_module(executable.hlo_proto), lambda: None)
    sources = Sources(module)
    chip = _chip(executable.target, executable.device)
    devices = math.prod(executable.mesh.values())
    inputs = inputs_of(module, executable.inputs)
    figures = executable.memory_analysis()
    peak = Peak(module, inputs, sources)
    memory = [*of_inputs(inputs), *of_run(peak.buffers, peak.of_outputs(), figures)]
    used = sum(row.bytes for row in memory)
    hbm = chip.available.value if chip is not None else None
    report = Fit(
        target=executable.target or executable.device,
        chip=chip,
        devices=devices,
        fits=hbm is None or used <= hbm,
        hbm=hbm,
        used=used,
        memory=tuple(memory),
        modules=tuple(by_module(inputs)),
        peak=tuple(peak.buffers[:_MOST]),
        padding=tuple(sorted(_padded(peak.buffers), key=lambda buffer: -buffer.padding)[:_MOST]),
        padded=sum(buffer.padding for buffer in peak.buffers),
        wide=tuple(wide_work(executable.jaxpr)) if executable.jaxpr is not None else (),
        host=sum(in_space(i.shape, HOST) for i in module.instructions.values()),
        assumptions=_OF_MEMORY,
    )
    if chip is None:
        return report
    topology = executable.target.partition(":")[2] if executable.target else "1"
    estimate = Estimate(module, chip, [int(n) for n in topology.split("x")], devices)
    return _with_time(report, estimate, sources)


def _padded(buffers: Iterable[PeakBuffer]) -> Iterator[PeakBuffer]:
    """The buffers of which padding is a twentieth or more, without those that are small anyway."""
    return (b for b in buffers if b.padding > max(_SMALL, b.stored / 20))


def _with_time(report: Fit, estimate: Estimate, sources: Sources) -> Fit:
    total = Busy()
    for busy in estimate.busy.values():
        total.add(busy)
    time = Time(estimate.seconds, dict(total.units), dict(total.limits))
    reach = time.total * estimate.chip.peak("bfloat16")
    unknown = [_NO_TRIPS for i in estimate.costs.unknown if i.opcode == "while"]
    unknown += [
        _KERNELS for i in estimate.costs.unknown if b"tpu_custom_call" in i.fields.get(28, b"")
    ]
    return replace(
        report,
        time=time,
        lines=_by_line(estimate, sources),
        parts=_by_scope(estimate),
        flops=total.flops,
        multiplied=total.multiplied,
        by_passes=dict(total.by_passes),
        utilization=total.flops / reach if reach else 0.0,
        assumptions=(*report.assumptions, *_OF_TIME, *dict.fromkeys(unknown)),
    )


def _refused(lowered: Lowered, message: str) -> Fit:
    """The report of a program that the compiler refuses."""
    assert lowered.target is not None
    chip = chip_of(lowered.target)
    memory = tuple(memory_of(lowered, message))
    return Fit(
        target=lowered.target,
        chip=chip,
        devices=math.prod(lowered.mesh.values()),
        fits=False,
        hbm=chip.available.value,
        used=sum(row.bytes for row in memory),
        memory=memory,
        wide=tuple(wide_work(lowered.jaxpr)),
        assumptions=_OF_REFUSED,
    )


def _chip(target: str | None, device: str) -> Chip | None:
    if target is not None:
        return chip_of(target)
    return next((chip for chip in targets() if chip.kind == device), None)


def _by_line(estimate: Estimate, sources: Sources) -> tuple[Part, ...]:
    rows: dict[Location | None, Busy] = {}
    for number, busy in estimate.busy.items():
        location = sources.of(estimate.module.instructions[number])
        rows.setdefault(location, Busy()).add(busy)
    return _parts({("" if at is None else str(at)): (at, busy) for at, busy in rows.items()})


def _by_scope(estimate: Estimate) -> tuple[Part, ...]:
    rows: dict[str, Busy] = {}
    for number, busy in estimate.busy.items():
        path = ".".join(scope_of(estimate.module.instructions[number].op_name).path)
        rows.setdefault(path, Busy()).add(busy)
    return _parts({path: (None, busy) for path, busy in rows.items()})


def _parts(rows: Mapping[str, tuple[Location | None, Busy]]) -> tuple[Part, ...]:
    found = [
        Part(name, at, busy.seconds, dict(busy.units), busy.flops, busy.bytes)
        for name, (at, busy) in rows.items()
        if busy.seconds or busy.flops or busy.bytes
    ]
    return tuple(sorted(found, key=lambda part: -part.seconds))
