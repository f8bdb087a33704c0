"""Compiles programs for a TPU that is not present. Runs as a script in a separate process; does not import torch.

    python -P tpu_worker.py

Each input line is a JSON list [target, program, result]. `program` is a file with a serialized `jax.export.Exported`;
the optimized HLO with its costs, or the error, is written to the file `result` as JSON. An output line "compiled" says
that the result is ready. libtpu must be importable here and nowhere else.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import jax

_FIGURES = (
    "argument_size_in_bytes",
    "output_size_in_bytes",
    "alias_size_in_bytes",
    "temp_size_in_bytes",
    "generated_code_size_in_bytes",
)


class Description(TypedDict):
    """A compiled program: its optimized HLO, costs, memory in bytes, and the kind of its device."""

    hlo: str
    costs: dict[str, float]
    memory: dict[str, int]
    device: str


def compile_for(target: str, program: bytes) -> Description:
    """Compile a program for the first chip of a topology such as "v5e:1x1"."""
    import jax
    from jax import export
    from jax.experimental import topologies

    chips = target.partition(":")[2]
    one = {"chips_per_host_bounds": (1, 1, 1), "num_slices": 1}
    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=target, **(one if set(chips.split("x")) == {"1"} else {})
    )
    where = jax.sharding.SingleDeviceSharding(topology.devices[0])
    exported = export.deserialize(bytearray(program))
    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=where) for a in exported.in_avals]

    def run(*arrays: jax.Array) -> object:
        return exported.call(*arrays)

    run.__name__ = exported.fun_name
    with jax.enable_x64(True):
        # `out_shardings`: a program without arguments must be compiled for that chip too.
        compiled = jax.jit(run, out_shardings=where).lower(*avals).compile()
    return describe(compiled, topology.devices[0])


def describe(compiled: jax.stages.Compiled, device: jax.Device) -> Description:
    """The optimized HLO of a compiled program, its costs and its memory."""
    memory = compiled.memory_analysis()
    costs = compiled.cost_analysis() or {}
    return {
        "hlo": compiled.as_text() or "",
        "costs": {name: float(value) for name, value in costs.items()},
        "memory": {name: getattr(memory, name) for name in _FIGURES if hasattr(memory, name)},
        "device": device.device_kind,
    }


def main() -> None:
    """Serve until the input ends."""
    for line in sys.stdin:
        target, program, result = json.loads(line)
        answer: Description | dict[str, str]
        try:
            answer = compile_for(target, Path(program).read_bytes())
        except Exception as error:
            text = "".join(traceback.format_exception_only(error))
            # XLA appends lines of this file.
            answer = {"error": text.partition("Suspected Python Code Location")[0].strip()}
        Path(result).write_text(json.dumps(answer))
        print("compiled", flush=True)


if __name__ == "__main__":
    main()
