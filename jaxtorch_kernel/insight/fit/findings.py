"""The conclusions of a fit report: sentences that each say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...base.units import counted, duration, share, size
from .roofline import HBM, MATRIX, PASSES_OF_HIGH

if TYPE_CHECKING:
    from .report import Fit

_WEIGHTS = ("parameters", "gradients", "optimizer state")
_SMALL = 0.05  # smaller shares of memory or time are not mentioned


def findings(fit: Fit) -> Iterator[str]:
    """The sentences of a report, the most important first."""
    yield from _too_large(fit)
    yield from _undonated(fit)
    yield from _precision(fit)
    yield from _waits(fit)
    yield from _padding(fit)
    yield from _wide(fit)
    if fit.host:
        yield f"{size(fit.host)} are in the host's memory; each access crosses the slower link to it."


def _too_large(fit: Fit) -> Iterator[str]:
    if fit.fits or fit.hbm is None:
        return
    need = f"It needs {size(fit.used - fit.hbm)} more than there is."
    weights = [kind for kind in fit.memory if kind.kind in _WEIGHTS and kind.bytes]
    held = sum(kind.bytes for kind in weights)
    if held > fit.hbm:  # smaller activations would not be enough
        names = " and ".join(", ".join(kind.kind for kind in weights).rsplit(", ", 1)).capitalize()
        yield (
            f"{need} {names} alone take {size(held)}. Shard the parameters over more chips (`mesh=`, `shardings=`), "
            "which also shards their gradients and optimizer state, or keep the parameters in bfloat16."
        )
        return
    largest = max(fit.memory, key=lambda kind: kind.bytes)
    advice = {
        "parameters": "shard the parameters over more chips (`mesh=`, `shardings=`), or keep them in bfloat16",
        "optimizer state": "shard the parameters over more chips, which also shards the optimizer's state",
        "gradients": "shard the parameters over more chips, which also shards their gradients",
        "activations": "recompute them (`torch.utils.checkpoint`), shard the batch over more chips, or take a "
        "smaller batch",
        "temporaries": "recompute activations (`torch.utils.checkpoint`), shard the batch over more chips, or "
        "take a smaller batch",
        "inputs": "shard the inputs over more chips, or pass fewer of them at a time",
        "outputs": "return less, or shard what is returned",
    }.get(largest.kind, "use more chips")
    yield (
        f"{need} The largest part: {largest.kind} ({size(largest.bytes)}). What helps: {advice}."
    )


def _undonated(fit: Fit) -> Iterator[str]:
    gradients = sum(row.bytes for row in fit.memory if row.kind == "gradients" and row.returned)
    if gradients > _SMALL * fit.used:
        yield (
            f"The step leaves its gradients in `.grad` ({size(gradients)}). Call `optimizer.zero_grad()` at the end of "
            "the step to free that memory."
        )


def _precision(fit: Fit) -> Iterator[str]:
    repeated = sum((passes - 1) * flops for passes, flops in fit.by_passes.items())
    if fit.time is None or repeated <= 0.5 * fit.flops:
        return
    if fit.time.units.get(MATRIX, 0) > _SMALL * fit.time.total:
        passes = 1 + repeated / sum(fit.by_passes.values())
        lower = "high" if max(fit.by_passes) > PASSES_OF_HIGH else "medium"
        yield (
            f"Products of float32 numbers take {passes:.2g} passes of the matrix unit: use bfloat16 "
            f'(`model.to(torch.bfloat16)` or autocast), or `torch.set_float32_matmul_precision("{lower}")`.'
        )


def _waits(fit: Fit) -> Iterator[str]:
    if fit.time is None or not fit.time.total:
        return
    total = fit.time.total
    for unit, seconds in sorted(fit.time.limits.items(), key=lambda item: -item[1]):
        if unit in (MATRIX, HBM) or seconds < _SMALL * total:
            continue
        where = max(fit.lines, key=lambda part: part.units.get(unit, 0.0)).name
        at = f" Most of it is at {where}." if where else ""
        yield (
            f"{share(seconds, total)} of the time ({duration(seconds * 1e9)}) waits for {unit}. Choose shardings that "
            f"move less data between chips, or give each chip more work.{at}"
        )
    if fit.flops and fit.time.limits.get(HBM, 0) > 0.5 * total:
        yield (
            f"{share(fit.time.limits[HBM], total)} of the time waits for memory: a larger batch on each chip reuses "
            "the weights that are read."
        )


def _padding(fit: Fit) -> Iterator[str]:
    wasted = sum(each.padding for each in fit.padding)
    if wasted > _SMALL * fit.used and fit.padding:
        worst = fit.padding[0]
        stored = ", ".join(f"a dimension of {a} is stored as {b}" for a, b in worst.padded)
        yield (
            f"{size(wasted)} are padding, most in {worst.name} ({worst.shape}): {stored}. Choose sizes that are "
            "multiples of 128, or put the largest dimension last."
        )


def _wide(fit: Fit) -> Iterator[str]:
    wide = [work for work in fit.wide if work.dtype in ("float64", "complex128")]
    if wide:
        at = f" at {wide[0].location}" if wide[0].location is not None else ""
        count = counted(sum(work.operations for work in wide), "operation")
        yield f"{count} on {wide[0].dtype} numbers, first{at}: a TPU emulates them slowly; use float32."
