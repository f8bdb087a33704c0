"""`%jax show`: a tensor, a module or a container of them as a tree."""

from __future__ import annotations

from IPython.core.error import UsageError

from jaxtorch.widgets.show import ShowView

from .table import Invocation, subcommand


@subcommand(
    "show",
    example="show model",
    help="a value as a tree: the values of its tensors, their dtype, memory and sharding",
    statement=True,
)
def show(call: Invocation) -> ShowView:
    """Draw the value of an expression with treescope: a tensor, a module, a dict of arrays, ..."""
    text = call.arguments.statement
    if not text:
        raise UsageError("`%jax show` takes what to show, as in `%jax show model`.")
    try:
        value: object = eval(text, dict(call.shell.user_ns))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"`%jax show {text}`: {reason.rstrip('.')}.") from None
    try:
        return ShowView(value)
    except ImportError:
        raise UsageError(
            "`%jax show` draws with treescope, which is not installed: `%pip install treescope`."
        ) from None
