"""Tensors as arrays: what is shared, what is copied, and that neither side sees the other's writes."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxtorch
from jaxtorch.capture.errors import CaptureError
from jaxtorch.storage.dtypes import DTYPES

from .shared_memory import DEVICES, address, pointer, same, some

# -- torch to JAX ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_every_dtype_both_ways(device: str, dtype: torch.dtype) -> None:
    tensor = some(dtype, 3, 4).to(device)
    array = jaxtorch.to_jax(tensor)
    assert same(array, tensor)
    for target in DEVICES:
        back = jaxtorch.to_torch(array, target)
        assert back.device.type == target
        assert back.dtype == dtype
        assert same(array, back)


def test_a_cpu_tensor_is_not_copied_and_counts_its_writes() -> None:
    tensor = torch.arange(1000.0)
    version = tensor._version
    array = jaxtorch.to_jax(tensor)
    assert pointer(array) == address(tensor)
    np.testing.assert_allclose(jnp.sin(array), np.sin(np.arange(1000.0)), atol=1e-6)
    assert tensor._version == version
    tensor.view(2, 500)[1].zero_()
    assert tensor._version == version + 1
    assert np.asarray(array)[500:].sum() == 0


@pytest.mark.parametrize("implicit", [False, True])
def test_a_copy_does_not_see_what_is_written(implicit: bool) -> None:
    """`jnp.asarray` and what converts like it always copies, for nobody asked for shared memory."""
    for write in (
        lambda t: t.view(2, 8)[1].zero_(),
        lambda t: t.numpy().fill(0),
        lambda t: torch.add(t, 1, out=t),
        lambda t: t.data.mul_(3),
    ):
        tensor = torch.arange(16.0)
        array = jnp.asarray(tensor) if implicit else jaxtorch.to_jax(tensor, copy=True)
        running = [jnp.sin(array) for _ in range(3)]
        write(tensor)
        assert array.tolist() == list(range(16))
        assert tensor.tolist() != array.tolist()
        for result in running:
            np.testing.assert_allclose(result, np.sin(np.arange(16.0)), atol=1e-6)


def test_a_model_trains_on_while_its_copied_arrays_stay() -> None:
    model = torch.nn.Linear(4, 4)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    arrays = jaxtorch.to_jax(dict(model.state_dict()), copy=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    for name, p in model.named_parameters():
        assert same(arrays[name], before[name])
        assert not torch.equal(p, before[name])


def test_the_memory_lives_as_long_as_something_reads_it() -> None:
    tensor = torch.full((1000,), 7.0)
    array = jaxtorch.to_jax(tensor)
    del tensor
    gc.collect()
    torch.full((1000,), 8.0)  # would take freed memory
    assert np.asarray(array).sum() == 7000


def test_threads_share_and_let_go() -> None:
    """XLA lets go of memory in threads of its own, when a computation that reads it is done."""
    function, wrong = jax.jit(lambda x: (x * 2).sum()), []

    def work() -> None:
        for value in range(100):
            tensor = torch.full((20000,), float(value))
            results = [function(jaxtorch.to_jax(tensor)) for _ in range(2)]
            copied = jaxtorch.to_jax(tensor, copy=True)
            del tensor
            other = jaxtorch.to_torch(copied)
            total = results[1].item()
            if total != 40000 * value or other[7].item() != value:
                wrong.append((value, total))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_donation_leaves_the_tensor_alone() -> None:
    tensor = torch.zeros(1000)
    array = jaxtorch.to_jax(tensor)
    taken = jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    assert taken.sum() == 1000
    assert tensor.sum() == 0


VIEWS: dict[str, Callable[[], torch.Tensor]] = {
    "part": lambda: torch.arange(40.0)[8:],
    "not aligned": lambda: torch.arange(40.0)[1:],
    "transposed": lambda: torch.arange(12.0).reshape(3, 4).t(),
    "every other": lambda: torch.arange(12.0)[::2],
    "expanded": lambda: torch.arange(3.0).expand(4, 3),
    "channels last": lambda: torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "flipped sign": lambda: torch._neg_view(torch.arange(3.0)),
    "conjugated": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "numpy's": lambda: torch.from_numpy(np.arange(16.0, dtype=np.float32)),
    "of processes": lambda: torch.arange(16.0).share_memory_(),
    "resized": lambda: torch.arange(16.0).resize_(8),
    "empty": lambda: torch.empty(0, 3),
    "no dimension": lambda: torch.tensor(3.0),
    "one element of many": lambda: torch.arange(16.0)[16 // 2],
    "overlapping": lambda: torch.arange(6.0).unfold(0, 3, 1),
    "a buffer of bytes": lambda: torch.frombuffer(bytearray(64), dtype=torch.float32),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("device", DEVICES)
def test_every_geometry_arrives_and_stays(name: str, device: str) -> None:
    tensor = VIEWS[name]().to(device)
    expected = tensor.cpu().resolve_conj().resolve_neg().clone()
    for copy in (None, True):
        array = jaxtorch.to_jax(tensor, copy=copy)
        assert same(array, expected)
        assert same(jnp.asarray(array) * 1, expected)
        assert same(array, jaxtorch.to_torch(array, "jax"))
        assert same(jaxtorch.to_jax(jaxtorch.to_torch(array, "cpu")), expected)
    if name not in ("expanded", "overlapping"):  # torch refuses those writes
        tensor.fill_(5)
        assert same(array, expected)


def test_read_only_memory_is_shared_and_not_written_to() -> None:
    owner = np.asarray(jnp.arange(16.0))
    assert not owner.flags.writeable
    with pytest.warns(UserWarning, match="not writable"):
        tensor = torch.from_numpy(owner)
    array = jaxtorch.to_jax(tensor)
    assert same(array, tensor)
    assert same(jax.jit(lambda x: x + 1, donate_argnums=0)(array), tensor + 1)
    assert owner.tolist() == list(range(16))


def test_copy_says_what_happens() -> None:
    tensor = torch.zeros(64)
    copied, shared = jaxtorch.to_jax(tensor, copy=True), jaxtorch.to_jax(tensor, copy=False)
    assert pointer(copied) != address(tensor)
    assert pointer(shared) == address(tensor)
    held = torch.from_numpy(np.zeros(1024, np.float32))
    start = -address(held) // 4 % 16  # the first element at a multiple of 64 bytes
    assert pointer(jaxtorch.to_jax(held[start:], copy=False)) == address(held[start:])


def test_an_array_in_another_order_of_memory() -> None:
    columns = torch.arange(1024.0).reshape(32, 32).t()
    array = jax.dlpack.from_dlpack(columns)  # which JAX takes without a copy, in its own way
    assert pointer(array) == address(columns)
    for tensor in (jaxtorch.to_torch(array, "jax"), torch.jax.from_dlpack(array)):
        assert torch.equal(tensor.cpu(), columns)
        assert torch.equal((tensor * 1).cpu(), columns)
    assert torch.equal(jaxtorch.to_torch(array), columns)
    with pytest.raises(ValueError, match="row-major"):
        jaxtorch.to_torch(array, "jax", copy=False)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("not aligned", "64 bytes"),
        ("every other", "strides"),
        ("transposed", "strides"),
        ("channels last", "strides"),
        ("expanded", "strides"),
        ("overlapping", "strides"),
        ("conjugated", "conjugated"),
        ("flipped sign", "negated"),
    ],
)
def test_what_cannot_be_shared_says_why(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        jaxtorch.to_jax(VIEWS[name](), copy=False)


def test_a_tensor_of_the_device_hands_over_its_array() -> None:
    tensor = torch.tensor([[0.0, 1, 2], [3, 4, 5]], device="jax")
    array = jaxtorch.to_jax(tensor)
    assert array is jaxtorch.to_jax(tensor)
    assert jaxtorch.to_jax(jaxtorch.to_torch(array, "jax")) is array
    tensor.add_(1)
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensor.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert pointer(jaxtorch.to_jax(tensor, copy=True)) != pointer(jaxtorch.to_jax(tensor))
    assert jaxtorch.to_jax(tensor, copy=False) is jaxtorch.to_jax(tensor)
    with pytest.raises(ValueError, match="a view"):
        jaxtorch.to_jax(tensor[0], copy=False)


def test_a_donated_array_is_named_by_the_tensor_that_lost_it() -> None:
    tensor = torch.zeros(4, device="jax")
    jax.jit(lambda x: x + 1, donate_argnums=0)(jaxtorch.to_jax(tensor))
    with pytest.raises(RuntimeError, match="donated argument"):
        jaxtorch.to_jax(tensor)
    kept = torch.zeros(4, device="jax")
    jax.jit(lambda x: x + 1, donate_argnums=0)(jaxtorch.to_jax(kept, copy=True))
    assert kept.tolist() == [0] * 4


def test_64_bits_stay_without_x64_and_jax_numpy_takes_its_own() -> None:
    assert not jax.config.jax_enable_x64
    for device in DEVICES:
        wide = torch.tensor([2**40, 1], device=device)
        array = jaxtorch.to_jax(wide)
        assert array.dtype == np.int64
        assert int(np.asarray(array)[0]) == 2**40
        assert jaxtorch.to_torch(array, device).tolist() == [2**40, 1]
        assert jnp.asarray(torch.ones(2, dtype=torch.float64, device=device)).dtype == jnp.float32
        with jax.enable_x64(True):
            assert jnp.asarray(wide).dtype == jnp.int64


@pytest.mark.parametrize(
    ("tensor", "error", "words"),
    [
        (lambda: torch.ones(2, requires_grad=True), RuntimeError, r"detach\(\).*call_jax"),
        (
            lambda: torch.ones(2, device="jax", requires_grad=True) * 2,
            RuntimeError,
            r"detach\(\).*call_jax",
        ),
        (lambda: torch.eye(2).to_sparse(), RuntimeError, "dense.*to_dense"),
        (lambda: torch.eye(2).to_sparse_csr(), RuntimeError, "dense.*to_dense"),
        (
            lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
            RuntimeError,
            "quantized.*dequantize",
        ),
        (lambda: torch.ones(2, device="meta"), RuntimeError, "no data"),
        (lambda: torch.ones(2, dtype=torch.complex32), TypeError, "complex32"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_an_array(tensor: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        jaxtorch.to_jax({"model": [torch.zeros(1), tensor()]})
    assert caught.value.__notes__ == ["in to_jax, at ['model'][1]"]


@pytest.mark.parametrize("device", DEVICES)
def test_parameters_where_no_gradient_is_recorded(device: str) -> None:
    layer = torch.nn.Linear(2, 2).to(device)
    with torch.no_grad():
        arrays = jaxtorch.to_jax(dict(layer.named_parameters()))
        assert jnp.stack([layer.bias]).shape == (1, 2)
    for name, p in layer.named_parameters():
        assert same(arrays[name], p)
        assert p.requires_grad
    with torch.inference_mode():
        assert same(jaxtorch.to_jax(layer.weight), layer.weight)


def test_captured_code_calls_jax_by_its_own_way() -> None:
    x = torch.ones(3, device="jax")
    for make in (jaxtorch.pure, jaxtorch.jit):
        with pytest.raises(CaptureError, match="call_jax"):
            make(lambda x: jaxtorch.to_jax(x.detach()))(x)
        with pytest.raises(CaptureError, match="call_jax"):
            make(lambda x: jnp.stack([x]))(x)
    assert jaxtorch.to_jax(x).tolist() == [1, 1, 1]
