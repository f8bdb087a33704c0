"""`%jax devices`: the devices, and how an array lies on them."""

from __future__ import annotations

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from jaxtorch.insight.sharding import devices as read_devices
from jaxtorch.insight.sharding import sharding_of
from jaxtorch.widgets.devices import DevicesView

from .table import Call, word


@word(
    "devices",
    argument("tensor", nargs="*", help="a tensor or a jax.Array, to see which part lies where"),
    example="devices",
    says="the devices, or how a tensor lies on them",
)
def devices(call: Call) -> DevicesView:
    """The devices of the session, or the sharding of an array."""
    text = " ".join(call.arguments.tensor)
    if not text:
        return DevicesView(read_devices())
    try:
        drawn = sharding_of(eval(text, dict(call.shell.user_ns)))
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"`%jax devices {text}`: {said}.") from None
    return DevicesView(read_devices(), drawn, text)
