"""What `import torch` does, and other ways to the device. Each in a process of its own."""

import os
import subprocess
import sys

import pytest


def python(program, autoload=True, **environment):
    """Run a program; its output, errors included."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(autoload)), **environment},
    )
    return done.stdout + done.stderr


USE = """
import torch
x = torch.ones(2, device="jax", requires_grad=True)
(x * 2).sum().backward()
print("grad", x.grad.tolist())
"""


def test_import_torch_is_enough_and_imports_no_jax():
    out = python(
        "import sys, torch\n"
        "torch.manual_seed(0); torch.jax.is_available(); torch.jax.device_count()\n"
        "print('jax' in sys.modules, torch.jax.is_initialized())\n" + USE
    )
    assert out.splitlines() == ["False False", "grad [2.0, 2.0]"]


def test_the_entry_point_imports_little():
    """What it costs is in `make bench`; what would make it cost is imported modules."""
    out = python(
        """
import sys, torch
before = set(sys.modules)
torch.__spec__._initializing = True  # as inside `import torch`
import jaxtorch.autoload
jaxtorch.autoload.register()
print(sorted({m.split(".")[0] for m in set(sys.modules) - before}))
print(sorted(m for m in sys.modules if m.startswith("jaxtorch.")))
""",
        autoload=False,
    )
    packages, modules = map(eval, out.splitlines()[-2:])
    assert packages == ["jaxtorch", "torch"]  # of torch, `torch.jax`
    device = ("generators", "guard", "module", "registration", "seeds")
    assert modules == [
        "jaxtorch.autoload",
        "jaxtorch.base",
        *(f"jaxtorch.base.{name}" for name in ("hooks", "torch_hooks", "torch_naming", "version")),
        "jaxtorch.device",
        *(f"jaxtorch.device.{name}" for name in device),
    ]


FIRST_USES = {
    "a load": "torch.load(io.BytesIO(saved), map_location='jax')",
    "a storage": "torch.empty(0, dtype=torch.uint8).jax().set_(torch.UntypedStorage([1, 2], device='jax'))",
    "dlpack": "torch.jax.from_dlpack(np.array([1, 2]))",
    "an operator by its name": "torch.ops.aten._to_copy(torch.tensor([1, 2]), device='jax')",
    "a thread": "concurrent.futures.ThreadPoolExecutor().submit(torch.tensor, [1, 2], device='jax').result()",
}


@pytest.mark.parametrize("expression", FIRST_USES.values(), ids=FIRST_USES)
@pytest.mark.sampled(3)
def test_any_first_use_starts_the_device(expression):
    out = python(
        f"""
import concurrent.futures, io, sys
import numpy as np, torch
file = io.BytesIO()
torch.save(torch.tensor([1, 2]), file)
saved = file.getvalue()
assert "jax" not in sys.modules
x = {expression}
print(x.device, np.asarray(x).tolist(), (x + 1).tolist())
"""
    )
    assert "jax:0 [1, 2] [2, 3]" in out.splitlines()  # beside what a jax may log


DYNAMO = """
import sys, torch
print("torch._dynamo" in sys.modules)
layers = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.GELU(), torch.nn.Dropout(0.1)
model = torch.nn.Sequential(*layers).to("jax")
x = torch.rand(2, 3, 8, 8, device="jax")
model(x).softmax(-1).log().mean().backward()
((x * 2 + 1 > 1) & (x.pow(2) != 0)).any().item()
print("torch._dynamo" in sys.modules)
explained = torch._dynamo.explain(lambda x: torch._refs.sub(x, x + 1).sin())(torch.ones(2))
print("torch._dynamo" in sys.modules, explained.graph_break_count)
"""


def test_operators_import_no_dynamo_and_dynamo_stays_out_of_their_metas():
    """The import takes longer than all else that a first operator does."""
    # After them, Dynamo of torch 2.15 prints errors of its own at the end of a process.
    assert python(DYNAMO).splitlines()[:3] == ["False", "False", "True 1"]


def test_a_first_use_that_fails_says_the_same_at_the_next():
    """And not that half of the device is registered already."""
    out = python(
        """
import sys, torch
sys.modules["jaxtorch.lowerings.special"] = None  # as where a library is missing
for _ in range(2):
    try:
        torch.ones(1, device="jax")
    except ImportError as error:
        print(error)
"""
    )
    first, second = (line for line in out.splitlines() if "lowerings.special" in line)
    assert first == second


def test_names_of_torch_jax_are_there_before_they_are_used():
    out = python("import torch\nprint(set(torch.jax.__all__) <= set(dir(torch.jax)))")
    assert out == "True\n"


def test_autoload_off_is_respected():
    out = python("import torch\nprint(hasattr(torch, 'jax'))\ntorch.ones(1, device='jax')", False)
    assert out.startswith("False")
    assert "RuntimeError: Expected one of cpu, cuda" in out


@pytest.mark.parametrize("first", ["import jaxtorch", "import torch, jaxtorch"])
@pytest.mark.parametrize("autoload", [True, False])
@pytest.mark.sampled(3)
def test_import_jaxtorch_registers(first, autoload):
    assert "grad [2.0, 2.0]" in python(f"{first}\njaxtorch.autoload.register()\n{USE}", autoload)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists the threads")
@pytest.mark.parametrize("autoload", [True, False])
def test_import_jaxtorch_first_starts_no_thread_of_autograd(autoload):
    """A process that ended while such a thread let go of the probe's graph aborted: one in three did."""
    threads = (
        "[open(f'/proc/self/task/{t}/comm').read().strip() for t in os.listdir('/proc/self/task')]"
    )
    program = f"import os, jaxtorch\nprint(sum('autograd' in name for name in {threads}))\n"
    assert python(program, autoload) == "0\n"
    # The names are those of torch. The process must not end as usual: it would abort at times.
    ends = "sys.stdout.flush()\nos._exit(0)"
    assert python(f"import sys, torch\n{program}{ends}", False) == "1\n"


def test_a_backward_before_a_late_import_is_explained():
    out = python(
        "import torch\ntorch.ones(1, requires_grad=True).sum().backward()\nimport jaxtorch", False
    )
    assert "RuntimeError: jaxtorch was imported after a backward pass had run" in out


def test_a_backward_on_the_cpu_first_does_no_harm_with_autoload():
    assert "grad" in python(
        "import torch\ntorch.ones(1, requires_grad=True).sum().backward()\n" + USE
    )


@pytest.mark.parametrize("name", ["jax", "npu"])
def test_another_package_holds_the_spare_device(name):
    """torchax renames it to `jax` at its import."""
    out = python(
        f"import torch\ntorch.utils.rename_privateuse1_backend({name!r})\nimport types\n"
        f"torch._register_device_module({name!r}, types.ModuleType('other'))\nimport jaxtorch",
        autoload=False,
    )
    assert "cannot share a process" in out
    assert "torchax" in out or "npu" in out


def test_ctrl_c_leaves_a_usable_device():
    out = python(
        """
import os, signal, threading, torch
x = torch.ones(200, 200, device="jax")
x @ x
def press():
    # Again and again: Python swallows an interrupt that meets a `__del__`.
    while not done.wait(2):
        os.kill(os.getpid(), signal.SIGINT)
done = threading.Event()
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=press).start()
try:
    while True:
        x = x @ x / 200
        x.add_(0)
except KeyboardInterrupt:
    done.set()
    print("interrupted")
print(x.isfinite().all().item(), (torch.ones(2, device="jax") + 1).tolist())
torch.jax.synchronize()
"""
    )
    # (Python prints an interrupt that met a collector's callback, and goes on.)
    lines = out.splitlines()
    assert lines.index("interrupted") < lines.index("True [2.0, 2.0]")


def test_several_jax_devices_are_placements_of_one():
    out = python(
        """
import torch
with torch.jax.device(1):
    x = torch.ones(1000, device="jax")
    y = x + 1
    print(torch.jax.current_device(), x.device, torch.jax.get_device_properties().id)
    print(y.untyped_storage().buffer.array.devices())
print(torch.jax.memory_allocated(1) >= 4000)
print((torch.ones(2, device="jax").untyped_storage().buffer.array.devices()))
torch.jax.set_device(1)
print(torch.zeros(2).jax().untyped_storage().buffer.array.devices(), torch.rand(2, device="jax").sum() > 0)
""",
        JAX_NUM_CPU_DEVICES="2",
    )
    lines = out.splitlines()
    assert lines[0] == "0 jax:0 1"
    assert "id=1" in lines[1]
    assert lines[2] == "True"
    assert "id=0" in lines[3]
    assert "id=1" in lines[4]
