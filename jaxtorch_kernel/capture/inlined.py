"""Functions that `torch.compile` compiled, called by captured code: they run as the Python that they were made from.

XLA compiles the captured program as a whole, so Dynamo's graphs would gain nothing. And the notes of a trace see what
Python code reads, but not what a graph was specialized to: the program would not notice a change of it.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import torch

from ..base.replaced import Replaced
from ..base.torch_hooks import HOOKS
from ..programs import tracing
from ..programs.site import warn

_HOOK = "torch._dynamo.eval_frame._callback_from_stance"
_COUNT = "torch._C._dynamo.eval_frame.set_fullgraph_compiled_frame_count"
_compile: Callable[..., object] = torch.compile
_lock = threading.Lock()
_replaced: Replaced | None = None
_lasting = (
    ExitStack()
)  # what begins in the middle of a trace stays for good: it affects traces alone


def inlined() -> AbstractContextManager[None]:
    """Keep Dynamo from running while this thread traces."""
    if "torch._dynamo.eval_frame" in sys.modules:
        return _without_dynamo().applied()
    return _importing.applied()


def _without_dynamo() -> Replaced:
    global _replaced
    with _lock:
        if _replaced is None:
            choose = HOOKS.find(_HOOK, instead=None)
            count_frames = HOOKS.find(_COUNT, instead=lambda count: count)

            def callback(callback: object) -> object:
                """Chooses what Dynamo calls for each frame; with None it leaves the frames alone."""
                if tracing.current() is None:
                    return choose(callback)
                _warn_of_options(callback)
                count_frames(-1)  # after a call with `fullgraph=True`, 0 would be an error
                return None

            module, _, name = _HOOK.rpartition(".")
            attributes = [] if choose is None else [(sys.modules[module], name, callback)]
            _replaced = Replaced(*attributes)
    return _replaced


def _warn_of_options(callback: object) -> None:
    while callback is not None and not hasattr(callback, "kwargs"):
        callback = getattr(callback, "_torchdynamo_orig_backend", None)
    options = getattr(callback, "kwargs", {}).get("options")
    if options and getattr(callback, "_compiler_name", None) == "jax":
        warn(
            f"captured code runs a function that was compiled with options={options}, which have no effect there. Set "
            "them around the captured code, with jaxtorch.config."
        )


@functools.wraps(_compile)
def _compile_in_trace(*args: object, **kwargs: object) -> object:
    """`torch.compile`, whose first call imports Dynamo: from then on, it is kept from running in traces."""
    compiled = _compile(*args, **kwargs)
    if tracing.current() is not None:
        _lasting.enter_context(_without_dynamo().applied())
    return compiled


_importing = Replaced((torch, "compile", _compile_in_trace))
