"""`%jax`: the device of the session, its state, its seed."""

from __future__ import annotations

from typing import Any

import torch
from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from jaxtorch.device.session import session
from jaxtorch.insight.status import read_status
from jaxtorch.widgets.status import StatusView

from .words import WORDS, nearest


@magics_class
class JaxMagics(Magics):
    """The magics that `%load_ext jaxtorch` adds."""

    @line_magic
    @magic_arguments()
    @argument(
        "word",
        nargs="?",
        default="status",
        metavar="word",
        help="`on`, `off`, `status` (the default) or `seed`",
    )
    @argument("value", nargs="?", help="for `seed`: a whole number")
    def jax(self, line: str) -> StatusView | None:
        """Run this session's PyTorch through XLA, on the device named `jax`.

        %jax on        new tensors and modules are made on the device, and torch.load puts tensors there
        %jax off       the default device is again what it was before `%jax on`
        %jax           the device at this moment: memory, compiled programs, operators that ran on the CPU
        %jax seed 0    the same as torch.manual_seed(0)

        An explicit device, as in torch.zeros(3, device="cpu"), is always obeyed.
        """
        arguments = parse_argstring(self.jax, line)
        word, value = arguments.word, arguments.value
        if word not in WORDS:
            raise UsageError(f"%jax has no word {word!r}. The nearest is `%jax {nearest(word)}`.")
        if word == "seed":
            torch.manual_seed(_seed(value))
            return None
        if value is not None:
            raise UsageError(f"`%jax {word}` takes nothing after it, and {value!r} is there.")
        if word == "status":
            return StatusView(read_status())
        _switch(word)
        return None


def _switch(word: str) -> None:
    """`on` or `off`, and a line that says what holds now."""
    try:
        session.on() if word == "on" else session.off()
    except RuntimeError as error:
        raise UsageError(str(error)) from None
    print(f"Default device: {torch.get_default_device()}{_platform() if word == 'on' else ''}")


def _platform() -> str:
    status = read_status()
    return f" ({status.platform}, {len(status.devices)} device{'s'[: len(status.devices) > 1]})"


def _seed(value: Any) -> int:
    try:
        return int(value, 0)
    except (TypeError, ValueError):
        said = "nothing" if value is None else repr(value)
        raise UsageError(
            f"`%jax seed` takes a whole number, as in `%jax seed 0`, not {said}."
        ) from None
