"""The programs that only JAX holds: those that it is lowering or compiling now, and the live executables.

Views also show the programs of the user's own `jax.jit`, for which we hold no object. XLA's client lists the live
executables. The jaxpr of a program is in a frame of JAX's own code while JAX lowers it.
"""

from __future__ import annotations

import re
import sys
from types import FrameType
from typing import Any

import jax
from jaxlib import xla_client

from .naming import name_inputs

_LOWERING = "_cached_lowering_to_hlo"
_STEPS = {_LOWERING: "lowering", "compile_or_get_cached": "XLA"}


class LiveExecutable:
    """An executable that only JAX holds, with the methods of `jax.stages.Compiled` that views call."""

    def __init__(self, executable: Any):
        self._executable = executable

    def runtime_executable(self) -> Any:
        return self._executable

    def memory_analysis(self) -> Any:
        return self._executable.get_compiled_memory_stats()

    def cost_analysis(self) -> Any:
        return self._executable.cost_analysis()


def newest_executable(name: str) -> tuple[Any, list[jax.ShapeDtypeStruct]] | None:
    """The fingerprint of the executable of a function that `jax.jit` has just compiled, and its inputs.

    XLA's client lists the live executables, the newest first. A fingerprint does not keep the executable alive, and
    weak references to executables are not possible.
    """
    wanted = re.sub(r"[^\w.-]", "_", f"jit({name})").rstrip("_")
    for executable in jax.devices()[0].client.live_executables()[:4]:  # other threads compile too
        modules = executable.hlo_modules()
        if modules and modules[0].name == wanted:
            proto = modules[0].as_serialized_hlo_module_proto()
            shapes = xla_client.XlaComputation(proto).program_shape().parameter_shapes()
            return executable.fingerprint, [
                jax.ShapeDtypeStruct(s.dimensions(), s.numpy_dtype()) for s in shapes
            ]
    return None


def find_executable(fingerprint: Any) -> LiveExecutable | None:
    """The executable that `newest_executable` identified, while it is alive."""
    live = jax.devices()[0].client.live_executables()
    executable = next((e for e in live if e.fingerprint == fingerprint), None)
    return None if executable is None else LiveExecutable(executable)


def lowered_jaxpr() -> Any:
    """The `jax.core.ClosedJaxpr` that JAX is lowering, for a listener of JAX's events; None if it cannot be found.

    The event has only a name. The function that records the event is on the stack, and its frame holds the jaxpr.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == _LOWERING:
            return frame.f_locals.get("closed_jaxpr")
        frame = frame.f_back
    return None


def step_of(frame: FrameType | None) -> str | None:
    """The step that JAX is running for a program on this stack: "lowering", "XLA", or neither (None)."""
    while frame is not None:
        if frame.f_code.co_name in _STEPS and "jax" in frame.f_code.co_filename:
            return _STEPS[frame.f_code.co_name]
        frame = frame.f_back
    return None


class LiveTrace:
    """The trace of a program that only JAX holds, with the interface of `jax.stages.Traced` that views use.

    Attributes:
        jaxpr: the `jax.core.ClosedJaxpr`.
    """

    def __init__(self, jaxpr: Any, name: str):
        self.jaxpr, self._name = jaxpr, name

    def lower(self) -> jax.stages.Lowered:
        """Lower the jaxpr again, without the donation and placement that the user's `jax.jit` specifies."""

        def again(*arguments: Any) -> Any:
            return jax.core.eval_jaxpr(self.jaxpr.jaxpr, self.jaxpr.consts, *arguments)

        again.__name__ = again.__qualname__ = self._name
        names = getattr(self.jaxpr.jaxpr.debug_info, "arg_names", None) or ()
        if len(names) == len(self.jaxpr.in_avals):
            name_inputs(again, [name or "argument" for name in names])
        avals = [
            jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type)
            for a in self.jaxpr.in_avals
        ]
        return jax.jit(again).lower(*avals)
