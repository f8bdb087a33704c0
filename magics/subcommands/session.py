"""`%jax on`, `off`, `status`, `seed`: the session's default device."""

from __future__ import annotations

from typing import Any

import torch
from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from jaxtorch.base.options import config
from jaxtorch.device.session import session
from jaxtorch.insight.status import read_status
from jaxtorch.widgets.status import StatusView

from .table import Invocation, subcommand


@subcommand(
    "on",
    argument(
        "--deferred",
        action="store_true",
        help="record operators, and run those of a training step together: `config(execution='deferred')`",
    ),
    help="create new tensors and modules on the device; torch.load places tensors there too",
)
def on(call: Invocation) -> None:
    """Make the device the session's default."""
    _switch(session.on)
    if call.arguments.deferred:
        config.update(execution="deferred")
    status = read_status()
    devices = f"{len(status.devices)} device{'s'[: len(status.devices) > 1]}"
    deferred = ", deferred execution" if config.execution == "deferred" else ""
    print(f"Default device: {torch.get_default_device()} ({status.platform}, {devices}{deferred})")


@subcommand("off", help="restore the default device from before `%jax on`")
def off(call: Invocation) -> None:
    """Restore the default device."""
    _switch(session.off)
    print(f"Default device: {torch.get_default_device()}")


@subcommand(
    "status",
    help="the state of the device (also `%jax` alone): memory, compiled programs, operators that ran on the CPU",
)
def status(call: Invocation) -> StatusView:
    """The state of the device."""
    return StatusView(read_status())


@subcommand(
    "seed",
    argument("value", nargs="?", help="a whole number"),
    example="seed 0",
    help="the same as torch.manual_seed(0)",
)
def seed(call: Invocation) -> None:
    """Seed all torch generators."""
    torch.manual_seed(_whole(call.arguments.value))


def _switch(turn: Any) -> None:
    try:
        turn()
    except RuntimeError as error:
        raise UsageError(str(error)) from None


def _whole(value: Any) -> int:
    try:
        return int(value, 0)
    except (TypeError, ValueError):
        given = "nothing" if value is None else repr(value)
        raise UsageError(
            f"`%jax seed` takes a whole number, as in `%jax seed 0`, not {given}."
        ) from None
