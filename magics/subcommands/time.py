"""`%%jax time` and `%jax time statement`: the time of the first run, and separately of later runs."""

from __future__ import annotations

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from jaxtorch.insight.timing import MEASUREMENTS, Timing, timed
from jaxtorch.widgets.timing import TimingView

from ..runnable import runnable
from .table import Invocation, subcommand


@subcommand(
    "time",
    argument(
        "--repeat",
        type=int,
        default=MEASUREMENTS,
        metavar="N",
        help=f"number of measurements of the warm time, {MEASUREMENTS} by default",
    ),
    example="time step(x)",
    help="time a statement, or a cell as %%jax time: the first run with its compilation, and the later runs",
    cell=True,
    statement=True,
)
def time(call: Invocation) -> TimingView:
    """Run the code repeatedly, wait for the device each time, and report cold and warm times."""
    measurements = call.arguments.repeat
    if measurements < 1:
        raise UsageError("--repeat must be at least 1.")
    timing: Timing = timed(runnable(call, quiet=True).run, measurements)
    return TimingView(timing)
