"""Compiles programs for a TPU that is not present. Runs as a script in a separate process; does not import torch.

    python -P tpu_worker.py DESCRIPTOR

The file descriptor is that of a `multiprocessing.connection.Connection`. Each message from it is a tuple (program,
target, donated, mesh, names): a serialized `jax.export.Exported`; a topology; the inputs whose memory it may reuse; the
axes of its mesh, or None; the names of its inputs. The answer is a pair: the figures and serialized forms of the
program, or None; and the error, or None. When the connection closes, this process ends, also while libtpu compiles.
libtpu must be importable here and nowhere else.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, TypedDict

if TYPE_CHECKING:
    import jax

_FIGURES = (
    "argument_size_in_bytes",
    "output_size_in_bytes",
    "alias_size_in_bytes",
    "temp_size_in_bytes",
    "generated_code_size_in_bytes",
    "peak_memory_in_bytes",
)


class Description(TypedDict):
    """A compiled program: its optimized HLO, costs, memory in bytes, and the kind of its device."""

    hlo: str
    costs: dict[str, float]
    memory: dict[str, int]
    device: str


def compile_for(
    target: str,
    program: bytes,
    donated: list[int],
    axes: dict[str, int] | None,
    names: tuple[str, ...],
) -> tuple[Description, Protos]:
    """Compile a program for a topology such as "v5e:4x4": for all its chips as a mesh, or for the first."""
    import jax
    from jax import export
    from jax.experimental import topologies

    importlib.import_module("libtpu")  # JAX hides why it cannot be imported
    name, _, chips = target.partition(":")
    options: dict[str, object] = {}
    if name == "v4":  # its two cores are one device to JAX on a TPU, but not for libtpu by itself
        options["chip_config_name"] = "megacore"
    if set(chips.split("x")) == {"1"}:
        options |= {"chips_per_host_bounds": (1, 1, 1), "num_slices": 1}
    topology = topologies.get_topology_desc(platform="tpu", topology_name=target, **options)
    exported = export.deserialize(bytearray(program))
    # The shardings of the results: a program without arguments must be compiled for these chips, too.
    if axes is None:
        where = jax.sharding.SingleDeviceSharding(topology.devices[0])
        given: list[jax.sharding.Sharding] = [where] * len(exported.in_avals)
        out = where
    else:
        mesh = topologies.make_mesh(topology, tuple(axes.values()), tuple(axes))
        replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        given = [s or replicated for s in exported.in_shardings_jax(mesh)]
        out = jax.tree.unflatten(exported.out_tree, exported.out_shardings_jax(mesh))
    pairs = zip(exported.in_avals, given, strict=True)
    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=where) for a, where in pairs]

    def run(*arrays: jax.Array) -> object:
        return exported.call(*arrays)

    run.__name__ = exported.fun_name
    if names:
        _naming().name_inputs(run, names)
    with jax.enable_x64(True), _dump(several=axes is not None) as dump:
        jitted = jax.jit(run, out_shardings=out, donate_argnums=tuple(donated))
        compiled = jitted.lower(*avals).compile(compiler_options=dump.options)
        try:
            return describe(compiled, topology.devices[0]), protos(compiled)
        except jax.errors.JaxRuntimeError:
            if (written := dump.read()) is None:
                raise
            text, module = written
            return describe(compiled, topology.devices[0], text), Protos(module)


def _naming() -> ModuleType:
    """`jaxtorch.base.naming`, without the package, whose import imports torch."""
    path = Path(__file__).parents[1] / "base" / "naming.py"
    spec = importlib.util.spec_from_file_location("naming", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Dump(NamedTuple):
    """Where libtpu writes the programs that it compiles; None: nowhere."""

    folder: Path | None

    @property
    def options(self) -> dict[str, str | bool] | None:
        """What tells libtpu to write them."""
        if self.folder is None:
            return None
        forms = {"xla_dump_hlo_as_proto": True, "xla_dump_hlo_as_text": True}
        return {"xla_dump_to": str(self.folder), **forms}

    def read(self) -> tuple[str, bytes] | None:
        """The program as text and as a serialized `HloModuleProto`; None if libtpu did not write it."""
        if self.folder is None:
            return None
        # libtpu numbers the modules of a process. The first one of a program is the program itself.
        found = [
            p.name.removesuffix(".txt") for p in self.folder.glob("module_*.after_codegen.txt")
        ]
        if not found:
            return None
        first = self.folder / min(found, key=lambda name: (len(name.partition(".")[0]), name))
        proto = Path(f"{first}.hlo.pb")
        if not proto.exists():
            return None
        return Path(f"{first}.txt").read_text(), _first_field(proto.read_bytes())


@contextmanager
def _dump(*, several: bool) -> Iterator[_Dump]:
    """Have libtpu write a program of several chips to files: it can be newer than jaxlib.

    jaxlib 0.10.2 cannot read some asynchronous collectives that libtpu makes for v5p, v6e and tpu7x. libtpu prints them
    itself. A program of one chip has no collectives.
    """
    with ExitStack() as stack:
        folder = None
        if several:
            with suppress(OSError):  # no room: programs that jaxlib can read need no files
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield _Dump(folder)


def _first_field(message: bytes) -> bytes:
    """The first field of a serialized message; in an `HloProto`, that is the `HloModuleProto`.

    Example:
        >>> _first_field(b"\\x0a\\x02hi" + b"more")
        b'hi'
    """
    length, shift, position = 0, 0, 1  # byte 0 has the field's number and type
    while True:
        byte = message[position]
        length |= (byte & 127) << shift
        shift, position = shift + 7, position + 1
        if byte < 128:
            return message[position : position + length]


def describe(
    compiled: jax.stages.Compiled, device: jax.Device, text: str | None = None
) -> Description:
    """The optimized HLO of a compiled program, its costs and its memory; `text` is the HLO if it is known."""
    memory = compiled.memory_analysis()
    costs = compiled.cost_analysis() or {}
    return {
        "hlo": compiled.as_text() or "" if text is None else text,
        "costs": {name: float(value) for name, value in costs.items()},
        "memory": {name: getattr(memory, name) for name in _FIGURES if hasattr(memory, name)},
        "device": device.device_kind,
    }


class Protos(NamedTuple):
    """Serialized forms of a compiled program.

    Attributes:
        hlo: the optimized HLO, an `HloModuleProto`.
        buffers: the layout of its memory, a `BufferAssignmentProto`; empty where the compiler reports none.
    """

    hlo: bytes
    buffers: bytes = b""


def protos(compiled: jax.stages.Compiled) -> Protos:
    """The serialized forms of a compiled program."""
    memory = compiled.memory_analysis()
    executable = compiled.runtime_executable()
    assert executable is not None
    (module,) = executable.hlo_modules()
    buffers = getattr(memory, "serialized_buffer_assignment_proto", b"")
    return Protos(module.as_serialized_hlo_module_proto(), buffers or b"")


def serve(
    connection: Connection,
    compile_one: Callable[..., tuple[Description, Protos]] = compile_for,
) -> None:
    """Answer requests until the connection closes, then end the process."""
    requests: queue.SimpleQueue[
        tuple[bytes, str, list[int], dict[str, int] | None, tuple[str, ...]]
    ]
    requests = queue.SimpleQueue()

    def receive() -> None:
        try:
            while True:
                requests.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)

    threading.Thread(target=receive, daemon=True).start()
    while True:
        program, target, donated, axes, names = requests.get()
        answer, failure = None, None
        try:
            figures, serialized = compile_one(target, program, donated, axes, names)
            answer = figures, tuple(serialized)  # of types that the other process has, too
        except Exception as error:
            text = "".join(traceback.format_exception_only(error))
            # XLA appends lines of this file.
            failure = text.partition("Suspected Python Code Location")[0].strip()
        connection.send((answer, failure))


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
