"""`%jax target`: the session's programs are compiled for another chip, too."""

from __future__ import annotations

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from jaxtorch.capture.target import current_target, results
from jaxtorch.capture.target import target as set_target
from jaxtorch.widgets.target import TargetView

from ...capture.tpu import CompileError
from ..elsewhere import target_names
from .table import Invocation, subcommand


@subcommand(
    "target",
    argument("name", nargs="?", help="a TPU and its topology, such as v5e:1x1; or off"),
    example="target v5e:2x4",
    help="also compile each captured program for this TPU, in the background; without a name: show the results",
    values={"name": lambda start: [*target_names(start), "off"]},
)
def target(call: Invocation) -> TargetView | None:
    """Set or remove the target, or show the results so far."""
    name = call.arguments.name
    if name is None:
        now = current_target()
        return TargetView(None if now is None else now.name, results)
    if name == "off":
        set_target(None)
        print("Target: none")
        return None
    try:
        set_target(name)
    except (CompileError, ValueError) as error:
        raise UsageError(f"`%jax target`: {error}.") from None
    print(f"Target: {name}. Programs are compiled for it too; `%jax target` shows the results.")
    return None
