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
from typing import Any

_FIGURES = (
    "argument_size_in_bytes",
    "output_size_in_bytes",
    "alias_size_in_bytes",
    "temp_size_in_bytes",
    "generated_code_size_in_bytes",
)


def compile_for(target: str, program: bytes) -> dict[str, Any]:
    """A program compiled for the first chip of a topology such as "v5e:1x1"."""
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

    def run(*arrays: Any) -> Any:
        return exported.call(*arrays)

    run.__name__ = exported.fun_name
    with jax.enable_x64(True):
        # A program without arguments, too, is for that chip.
        compiled = jax.jit(run, out_shardings=where).lower(*avals).compile()
    return describe(compiled, topology.devices[0])


def describe(compiled: Any, device: Any) -> dict[str, Any]:
    """The optimized HLO of a compiled program, its costs and its memory."""
    memory = compiled.memory_analysis()
    costs = compiled.cost_analysis() or {}
    return {
        "hlo": compiled.as_text(),
        "costs": {name: float(value) for name, value in costs.items()},
        "memory": {name: getattr(memory, name) for name in _FIGURES if hasattr(memory, name)},
        "device": device.device_kind,
    }


def main() -> None:
    """Serve until the input ends."""
    for line in sys.stdin:
        target, program, result = json.loads(line)
        try:
            found = compile_for(target, Path(program).read_bytes())
        except Exception as error:
            text = "".join(traceback.format_exception_only(error))
            # What follows are lines of the engine.
            found = {"error": text.partition("Suspected Python Code Location")[0].strip()}
        Path(result).write_text(json.dumps(found))
        print("compiled", flush=True)


if __name__ == "__main__":
    main()
