"""What the table of private hooks does, and the hooks of torch: a new version that changes one fails here, by name."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest
import torch
from torch._C import DispatchKey

from jaxtorch.base import hooks, torch_private, torch_views
from jaxtorch.capture.optimizer_state import create_state


def test_create_empty_tensor_makes_a_plain_tensor_of_the_device() -> None:
    tensor = torch_private.create_empty_tensor((2, 3), torch.int16)
    assert type(tensor) is torch.Tensor
    assert (tensor.shape, tensor.dtype, tensor.device) == (
        (2, 3),
        torch.int16,
        torch.device("jax", 0),
    )


def test_attributes_of_a_storage_live_as_long_as_the_storage() -> None:
    tensor = torch_private.create_empty_tensor((2,), torch.float32)
    tensor.untyped_storage().mark = "kept"  # type: ignore[attr-defined]
    alias = tensor.detach()
    del tensor
    assert alias.untyped_storage().mark == "kept"  # type: ignore[attr-defined]


def test_a_meta_kernel_on_a_device_tensor_makes_an_alias() -> None:
    tensor = torch.zeros(4, 6, device="jax")
    view = torch_views.as_strided(tensor, (3,), (2,), 5)
    assert view.untyped_storage() is tensor.untyped_storage()
    assert (view.stride(), view.storage_offset()) == ((2,), 5)
    assert torch.ops.aten.view.default._op_dk(DispatchKey.Meta, tensor, (24,)).shape == (24,)


def test_an_alias_is_of_the_kind_of_its_base() -> None:
    tensor = torch.zeros(4, 6, device="jax")
    with torch.inference_mode():
        inside = torch.zeros(4, 6, device="jax")
        views = [torch_views.alias_at(t, (3,), (2,), 1) for t in (tensor[1:], inside[1:])]
    views += [torch_views.alias_at(t, (3,), (2,), 1) for t in (tensor[1:], inside[1:])]
    assert [v.is_inference() for v in views] == [False, True, False, True]
    for view, base in zip(views, [tensor, inside] * 2, strict=True):
        assert view.untyped_storage() is base.untyped_storage()
        assert (view.shape, view.stride(), view.storage_offset()) == ((3,), (2,), 7)


@pytest.mark.parametrize(
    "kind",
    # SGD creates its momentum after the step: see `add_momentum`.
    [
        k
        for k in vars(torch.optim).values()
        if hasattr(k, "_init_group") and k is not torch.optim.SGD
    ],
    ids=str,
)
def test_the_state_that_an_optimizer_creates_before_its_step(
    kind: type[torch.optim.Optimizer],
) -> None:
    optimizers = [kind([torch.nn.Parameter(torch.ones(2, 3))]) for _ in range(2)]
    states = []
    for optimizer, create in zip(optimizers, (create_state, kind.step), strict=True):
        (p,) = optimizer.param_groups[0]["params"]
        p.grad = torch.ones(2, 3)
        create(optimizer)
        state = optimizer.state[p]
        states.append({k: getattr(v, "shape", None) for k, v in state.items() if v is not None})
    assert states[0] == states[1]


def test_a_made_storage_reports_size_and_an_address_of_its_own() -> None:
    one, two = torch_private.make_storage(24), torch_private.make_storage(24)
    assert one.nbytes() == 24
    assert one.data_ptr() != two.data_ptr()
    tensor = torch_private.create_empty_tensor((6,), torch.float32)
    torch_private.put_on_storage(tensor, one, 0, (2, 3), (3, 1))
    assert tensor.untyped_storage().data_ptr() == one.data_ptr()
    assert tensor.shape == (2, 3)


def test_the_memory_format_is_read_off_the_strides() -> None:
    suggest = torch_private.suggest_memory_format
    for channels in (1, 3):
        image = torch.empty(2, channels, 4, 4, device="meta")
        assert suggest(image) == torch.contiguous_format
        last = torch.empty(2, channels, 4, 4, device="meta", memory_format=torch.channels_last)
        assert suggest(last) == torch.channels_last
    volume = torch.empty(2, 3, 4, 4, 4, device="meta", memory_format=torch.channels_last_3d)
    assert suggest(volume) == torch.channels_last_3d


def python(program: str) -> str:
    """The output of a program, errors and warnings included, that starts without the device."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    return done.stdout + done.stderr


def test_a_torch_without_a_required_hook_is_one_clear_error() -> None:
    out = python("import torch\ndel torch._C._set_conj\nimport jaxtorch")
    assert (
        "ImportError: jaxtorch needs torch's private hook `torch._C._set_conj` (makes a tensor lazily conjugated), "
        f"which torch {torch.__version__} does not have. Install a supported version: pip install 'torch"
    ) in out


MISSING = """
import torch
{missing}
import jaxtorch
x = torch.ones(3, device="jax", requires_grad=True)
(x * 2).sum().backward()
print(x.grad.tolist())
{feature}
"""


@pytest.mark.parametrize(
    ("missing", "feature", "warning"),
    [
        (
            "del torch._C._accelerator_emptyCache",
            "print(torch.accelerator.get_memory_info() is not None)",
            "torch._C._accelerator_emptyCache` (answers `torch.accelerator.empty_cache`)",
        ),
        (
            "del torch._higher_order_ops.utils._hop_compile_and_call",
            "print(bool(x.sum() > 0))",
            "Dynamo compiles `torch.cond` and similar functions first",
        ),
        (
            "del torch.compiler._is_compiling_flag",
            "print(jaxtorch.pure(lambda x: x * 2)(x).tolist() == [2, 2, 2])",
            "`torch.compiler.is_compiling()` is false inside captured code",
        ),
        (
            "del torch.serialization._get_restore_location",
            "from jaxtorch.device.session import session\nsession.on()\nprint(torch.ones(1).is_jax)\nsession.off()",
            "`torch.load` ignores the session's default device",
        ),
        (
            "import jax._src.compilation_cache as c\ndel c.reset_cache",
            "print(jax_private_use())",
            "compiled programs are kept in JAX's own files",
        ),
    ],
    ids=["accelerator", "cond", "compiling", "load", "cache"],
)
@pytest.mark.sampled(6)
def test_a_missing_optional_hook_costs_one_feature(
    missing: str, feature: str, warning: str
) -> None:
    use = "from jaxtorch.base import jax_private\njax_private.use_program_files(None)\nprint(True)"
    feature = feature.replace(
        "print(jax_private_use())", f"{use}\njax_private.use_program_files(None)"
    )
    out = python(MISSING.format(missing=missing, feature=feature))
    assert [line for line in out.splitlines() if line in ("[2.0, 2.0, 2.0]", "True")] == [
        "[2.0, 2.0, 2.0]",
        "True",
    ], out
    assert out.count(warning) == 1, out


def test_a_hook_may_have_other_paths_in_other_versions() -> None:
    table = {
        "torch._no._such | torch._C._set_conj": hooks.Hook("does something"),
        "torch._no._such | torch._C._neither": hooks.Hook("does something else", without="nothing"),
    }
    table_hooks = hooks.Hooks("torch", table)
    table_hooks.check()
    assert table_hooks.find("torch._no._such | torch._C._set_conj") is torch._C._set_conj
    with pytest.warns(UserWarning, match="does something else.*: nothing"):
        assert table_hooks.find("torch._no._such | torch._C._neither", instead=7) == 7


OPERATORS = [
    "erfinv",
    "add.out",
    "nonzero",
    "linalg_eig",
    "_linalg_det",
    "gru.input",
    "eye",
    "index_put_",
]


def test_a_torch_without_an_operator_costs_only_the_operator() -> None:
    """A lowering, the form of one that writes, kernels, an autocast rule and operators looked up at import."""
    out = python(
        f"""
import warnings
import torch
hidden = {OPERATORS!r}
class Packet:
    # torch's, less an overload
    def __init__(self, packet, without):
        self.packet, self.without = packet, without
    def __getattr__(self, name):
        if name in self.without:
            raise AttributeError(name)
        return getattr(self.packet, name)
    def overloads(self):
        return [o for o in self.packet.overloads() if o not in self.without]
packets = {{name.partition(".")[0]: getattr(torch.ops.aten, name.partition(".")[0]) for name in hidden}}
for name in hidden:
    base, _, overload = name.partition(".")
    setattr(torch.ops.aten, base, Packet(packets[base], [overload or "default"]))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import jaxtorch
    x = torch.ones(3, device="jax", requires_grad=True)
    for base, packet in packets.items():
        setattr(torch.ops.aten, base, packet)  # torch itself may use them
    (x * 2 + torch.eye(3).jax()).sum().backward()
    print(x.grad.tolist(), torch.linalg.inv(torch.eye(2, device="cpu").jax()).tolist())
named = sorted(str(w.message).partition("aten::")[2].partition(",")[0] for w in caught)
print(named)
"""
    )
    lines = out.splitlines()
    assert lines[-2] == "[6.0, 6.0, 6.0] [[1.0, 0.0], [0.0, 1.0]]", out
    named = [name.removesuffix(".default") for name in ast.literal_eval(lines[-1])]
    assert sorted(set(named)) == sorted(named) == sorted(set(OPERATORS) - {"add.out"}), out


def test_dynamo_can_be_told_not_to_look_into_a_package() -> None:
    from torch._dynamo import trace_rules

    assert callable(trace_rules.add), "hide_from_dynamo needs torch._dynamo.trace_rules.add"


def test_who_stands_between_a_call_and_the_device() -> None:
    plain = torch.ones(2, device="jax")
    assert not torch_private.interposed([plain, torch.nn.Parameter(plain)])
    assert torch_private.interposed([torch.ones(2, dtype=torch.complex64, device="jax").conj()])
    calls = []
    torch.func.vmap(lambda x: calls.append(torch_private.interposed([])) or x)(plain)
    with torch.autograd.forward_ad.dual_level():
        calls.append(torch_private.interposed([]))
    assert calls == [True, True]


def test_a_tensor_whose_writes_are_refused_is_read_as_before_and_never_written() -> None:
    tensor = torch.arange(4.0)
    refused = torch_private.from_capsule(tensor.__dlpack__())
    torch_private.refuse_writes(refused)
    assert refused.add(1).tolist() == [1.0, 2.0, 3.0, 4.0]
    for write in (
        lambda: refused[1:].add_(1),
        lambda: refused.numpy(),
        lambda: torch.add(refused, 1, out=refused),
    ):
        with pytest.raises(RuntimeError) as caught:
            write()
        assert torch_private.is_refused_write(caught.value)
    with pytest.raises(RuntimeError) as caught:
        refused.detach().requires_grad_().add_(1)
    assert torch_private.is_refused_write(caught.value)
    assert not torch_private.is_refused_write(
        RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    )
    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_the_users_of_a_storage_are_counted() -> None:
    tensor = torch.ones(3)
    storage = tensor.untyped_storage()
    view = tensor[1:]
    assert torch_private.users(storage._cdata) == 3
    loss = (torch.ones(3, requires_grad=True) * tensor).sum()
    del tensor, view
    assert torch_private.users(storage._cdata) == 2
    del loss
    assert torch_private.users(storage._cdata) == 1


def test_a_batch_is_what_vmap_makes_of_it() -> None:
    def f(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        x, w = tensors
        inner = torch_private.over_batch(lambda ts: [ts[0] * w], 2, [x], [True])
        return [x @ w, w.sum(), *inner]

    x, w = torch.arange(6.0).reshape(3, 2), torch.tensor([2.0, 3.0])
    expected = torch.vmap(lambda x: (x @ w, w.sum(), torch.vmap(lambda e: e * w)(x)))(x)
    result = torch_private.over_batch(f, 3, [x, w], [True, False])
    for ours, theirs in zip(result, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    (numbers,) = torch_private.over_batch(lambda ts: [ts[0] + torch.rand(())], 3, [x], [True])
    assert len((numbers - x)[:, 0].unique()) == 3
    with pytest.raises(ZeroDivisionError):
        torch_private.over_batch(lambda ts: [ts[0] / (1 // 0)], 3, [x], [True])
    assert torch._C._functorch.peek_interpreter_stack() is None


def test_function_modes_are_counted() -> None:
    before = torch_private.function_modes()
    with torch.device("cpu"):
        assert torch_private.function_modes() == before + 1
    assert torch_private.function_modes() == before


def test_the_class_of_generators_decides_what_a_call_of_it_makes() -> None:
    kind = type(torch.Generator)
    assert kind.__module__.startswith("torch._"), "a class written in Python, which can change"
    assert "__call__" in vars(kind), "ours: torch has none there"
    assert type(torch.Generator()) is torch.Generator


def test_a_generator_keeps_its_identity_on_the_way_to_a_kernel() -> None:
    calls = []
    library = torch.library.Library("pinned", "DEF")
    library.define("draw(Tensor x, Generator? generator=None) -> Tensor")
    library.impl("draw", lambda x, generator=None: (calls.append(generator._cdata), x)[1], "CPU")
    generator = torch.Generator("jax")
    torch.ops.pinned.draw(torch.zeros(1), generator)
    assert calls == [generator._cdata]


def test_dynamo_takes_our_generators_for_plain_objects() -> None:
    from torch._library import opaque_object

    # Named `is_opaque_type` until torch 2.14.
    is_opaque = getattr(opaque_object, "is_custom_class", None) or opaque_object.is_opaque_type
    assert is_opaque(torch.Generator)
    assert not is_opaque(type(torch.Generator("jax")))


def test_what_autograd_saves_may_go_through_hooks() -> None:
    assert torch_private.saving_hooks() is None
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert torch_private.saving_hooks() is not None
