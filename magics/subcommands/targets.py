"""`%jax targets`: the TPU chips that programs can be compiled for."""

from __future__ import annotations

from jaxtorch.capture.tpu_chips import targets as chips
from jaxtorch.widgets.targets import TargetsView

from ...capture.tpu import CompileError, libtpu_folder
from .table import Invocation, subcommand


@subcommand("targets", help="the TPU chips that a program can be compiled for, without a TPU")
def targets(call: Invocation) -> TargetsView:
    """The chips, with memory, peak rates and bandwidths, and whether their compiler is here."""
    try:
        libtpu_folder()
    except CompileError as error:
        return TargetsView(chips(), str(error))
    return TargetsView(chips())
