"""A program that does not use the device finds torch as it is where this package is not installed.

`TORCH_DEVICE_BACKEND_AUTOLOAD=0` takes the place of a Python without the package: nothing else of it runs by itself.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from .test_autoload import python

HOLDINGS = Path(__file__).with_name("holdings.py")
# What `torch.utils.rename_privateuse1_backend("jax")` itself changes: how two enumerations spell the spare backend.
RENAMED = re.compile(
    r"torch\._C\._(autograd\.DeviceType|profiler\.ProfilerActivity)\(\)\.(__repr__|__str__|name)"
    r"|torch\.utils\.backend_registration\._privateuse1_backend_name"
)
# `device/generators.py`: the one change beyond the name.
GENERATORS = f"{type(torch.Generator).__module__}.{type(torch.Generator).__name__}().__call__"
ADDED = re.compile(r"[\w.]+(\(\))?\.(is_)?jax(\..*)?|torch\._C\._[\w.]+\(\)\.JAX")


def run_holdings(autoload: bool) -> dict:
    return json.loads(python(HOLDINGS.read_text(), autoload))


@pytest.fixture(scope="module")
def without() -> dict:
    return run_holdings(autoload=False)


@pytest.fixture(scope="module")
def installed() -> dict:
    return run_holdings(autoload=True)


def test_everything_that_torch_holds_is_compared(without):
    names = without["holdings"]
    for name in (
        "torch._C._accelerator_synchronizeDevice",
        "torch.utils.dlpack.to_dlpack",
        "torch._C.StorageBase().__new__",
        "torch.Tensor().__array__",
        "operator aten::_pin_memory",
        "operator aten::is_pinned",
        GENERATORS.replace("__call__", "__instancecheck__"),
    ):
        assert name in names
    assert len(names) > 50_000


def test_nothing_of_torch_is_another(without, installed):
    before, after = without["holdings"], installed["holdings"]
    assert before.keys() <= after.keys()
    changed = {name for name in before if before[name] != after[name]}
    assert {n for n in changed if not RENAMED.fullmatch(n)} == set()


def test_what_is_new_in_torch_is_called_jax(without, installed):
    new = installed["holdings"].keys() - without["holdings"].keys()
    assert "torch.jax" in new
    assert {n for n in new if not ADDED.fullmatch(n)} <= {GENERATORS}


def test_nothing_but_the_package_is_imported(without, installed):
    new = set(installed["modules"]) - set(without["modules"])
    submodules = {f"torch.jax.{name}" for name in ("amp", "memory", "random", "streams")}
    assert {n for n in new if n.partition(".")[0] != "jaxtorch"} == {"torch.jax", *submodules}
    assert not [n for n in new if n.startswith(("jaxtorch.operators", "jaxtorch.dispatch"))]


UNTIL_USED = """
import sys, torch
def state():
    return (
        torch.UntypedStorage.__new__ is torch._C.StorageBase.__new__,
        type(torch._C._accelerator_emptyCache).__name__ == "builtin_function_or_method",
        type(torch.Tensor.pin_memory).__name__ == "method_descriptor",
        torch.utils.dlpack.to_dlpack is torch._C._to_dlpack,
    )
torch.manual_seed(0)
print(all(state()))
{use}
print(any(state()), "jax" in sys.modules)
"""


@pytest.mark.parametrize(
    ("use", "starts"),
    [
        ("torch.jax.is_available()", False),
        ("torch.accelerator.is_available()", False),
        ("torch.accelerator.memory_stats", None),
        ("torch.jax.device", False),
        ("torch.zeros(1, device='jax')", True),
        ("torch.zeros(1).jax()", True),
        ("torch.jax.init()", True),
        ("torch.accelerator.synchronize()", True),
    ],
)
def test_the_first_use_extends_torch(use, starts):
    first, then = python(UNTIL_USED.format(use=use)).splitlines()[-2:]
    assert first == "True"
    assert then == ("True False" if starts is None else f"False {starts}")


def test_a_seed_given_before_the_device_is_used_counts():
    out = python(
        """
import torch
torch.manual_seed(5)
early = torch.rand(3, device="jax")
torch.manual_seed(5)
print(torch.equal(early, torch.rand(3, device="jax")))
"""
    )
    assert out.splitlines()[-1] == "True"
    asked = python(
        "import torch\ntorch.manual_seed(5)\nprint(torch.jax.initial_seed(), torch.rand(1).jax())"
    )
    assert asked.startswith("5 ")


def test_kernels_of_the_cpu_stay_torchs_own_when_the_device_is_used():
    out = python(
        """
import torch
def kernels():
    # What is registered for the CPU and above it; ours are for PrivateUse1, PrivateUse2 and AutocastPrivateUse1.
    names = [op for op in torch._C._dispatch_get_all_op_names() if op.startswith("aten::")]
    lines = {op: torch._C._dispatch_dump(op).splitlines() for op in names}
    return {op: [l for l in found if "PrivateUse" not in l] for op, found in lines.items()}
# Batching rules are for all devices. These operators have one, and run on no CPU tensor.
BATCHED = ("aten::linear_backward", "aten::matmul_backward")
assert not any(torch._C._dispatch_has_kernel_for_dispatch_key(op, "CPU") for op in BATCHED)
before = kernels()
x = torch.ones(2, device="jax")
(x * 2).sum().item()
pinned = torch.ones(2).pin_memory()
print(pinned.is_pinned(), torch.ones(2).is_pinned())
after = kernels()
new = {op: [l for l in after[op] if l not in before[op]] for op in before if before[op] != after[op]}
print([op for op, l in new.items() if op not in BATCHED or any("FuncTorchBatched" not in one for one in l)])
"""
    )
    assert out.splitlines()[-2:] == ["True False", "[]"]


@pytest.mark.slow
def test_a_generator_may_be_the_first_use():
    out = python(
        "import torch\ng = torch.Generator('jax').manual_seed(3)\nprint(g.device, g.initial_seed())"
    )
    assert out.splitlines()[-1] == "jax:0 3"
    assert python("import torch\nprint(torch.Generator().device)").splitlines()[-1] == "cpu"


@pytest.mark.slow
def test_a_storage_as_the_first_use_is_an_error_and_no_crash():
    out = python(
        """
import torch
try:
    torch.UntypedStorage(4, device="jax")
except RuntimeError as error:
    print(str(error).partition(" of")[0])
print(torch.UntypedStorage(4, device="jax").device, torch.Generator("jax").device)
"""
    )
    assert out.splitlines()[-2:] == [
        "Cannot access data pointer",
        "jax:0 jax:0",
    ]
    asked = python("import torch\ntorch.jax.is_available()\nprint(torch.Generator('jax').device)")
    assert asked.splitlines()[-1] == "jax:0"


OTHER = """
import sys, torch
before = set(sys.modules)
own = torch.accelerator.current_accelerator()  # None, or cuda where torch is built for it
{accelerator}
torch.__spec__._initializing = True  # as inside `import torch`
from importlib.metadata import entry_points
(point,) = [p for p in entry_points(group="torch.backends") if p.name == "jax"]
point.load()()
torch.__spec__._initializing = False
is_as_before = torch.accelerator.current_accelerator() == own
print(hasattr(torch, "jax"), is_as_before, torch._C._get_privateuse1_backend_name())
print(sorted(m for m in set(sys.modules) - before if m.startswith(("jaxtorch", "torch"))))
import jaxtorch
print((torch.ones(2, device="jax") + 1).tolist(), torch.accelerator.current_accelerator())
"""


ACCELERATORS = {
    "mps": "torch.version.cuda, torch.accelerator.device_count = None, lambda: 1",
    # Asking CUDA's runtime would break forks: `torch.accelerator` must not be called.
    "cuda": """torch.version.cuda, torch.cuda.device_count = "13.0", lambda: 1
torch.accelerator.device_count = None""",
}


@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_beside_another_accelerator_only_the_programs_own_import_names_the_device(accelerator):
    program = OTHER.replace("{accelerator}", ACCELERATORS[accelerator])
    assert python(program, autoload=False).splitlines()[-3:] == [
        "False True privateuseone",
        "[]",
        "[2.0, 2.0] jax",
    ]


def test_an_autoload_that_fails_leaves_torch_usable():
    out = python(
        """
import torch
del torch._C._acc.create_empty_tensor
torch.__spec__._initializing = True
from importlib.metadata import entry_points
(point,) = [p for p in entry_points(group="torch.backends") if p.name == "jax"]
point.load()()
torch.__spec__._initializing = False
print((torch.ones(2) + 1).tolist())
import jaxtorch
""",
        autoload=False,
    )
    assert "RuntimeWarning: torch has no device `jax`" in out
    assert "[2.0, 2.0]" in out
    assert (
        "ImportError: jaxtorch needs torch's private hook `torch._C._acc.create_empty_tensor`"
        in out
    )
