"""numpy, dlpack and matplotlib on tensors of the device."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch


@pytest.fixture
def x():
    return torch.arange(6.0, device="jax").reshape(2, 3) + 1


def test_asarray_copies_to_the_host(x):
    array = np.asarray(x)
    assert array.tolist() == [[1, 2, 3], [4, 5, 6]]
    array[0] = 0
    assert x.sum() == 21
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert np.array(x[:, 1]).tolist() == [2, 5]
    assert np.stack([x, x]).shape == (2, 2, 3)
    assert np.asarray(x.to(torch.complex64).conj()).dtype == np.complex64
    assert np.asarray(x.bool()).dtype == np.bool_


def test_numpy_says_how(x):
    with pytest.raises(TypeError, match=r"Tensor\.cpu\(\)"):
        x.numpy()
    assert x.numpy(force=True).sum() == 21
    assert x.cpu().numpy().sum() == 21
    with pytest.raises(RuntimeError, match="detach"):
        np.asarray(x.requires_grad_())


def test_cpu_tensors_still_share_memory():
    host = torch.zeros(3)
    np.asarray(host)[0] = 1
    assert host[0] == 1
    assert np.from_dlpack(host).tolist() == [1, 0, 0]
    assert torch.from_dlpack(torch.utils.dlpack.to_dlpack(host)).tolist() == [1, 0, 0]


def test_matplotlib_takes_jax_tensors(x):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3)
    (line,) = axes[0, 0].plot(x[0], x[1])
    assert line.get_xdata().tolist() == [1, 2, 3]
    assert line.get_ydata().tolist() == [4, 5, 6]
    (line,) = axes[0, 0].plot(x[0])
    assert line.get_ydata().tolist() == [1, 2, 3]
    axes[0, 1].scatter(x[0], x[1], c=x[0])
    axes[0, 2].imshow(x)
    axes[1, 0].bar(x[0], x[1])
    axes[1, 1].hist(x[0])
    axes[1, 2].plot(list(x[0]))
    figure.canvas.draw()
    plt.close(figure)


def test_out_by_dlpack(x):
    for view in (x, x[:, 1], x.t(), x[0, 0]):
        expected = view.cpu()
        assert torch.equal(torch.from_numpy(np.from_dlpack(view).copy()), expected)
        assert jax.dlpack.from_dlpack(view).tolist() == expected.tolist()
        assert jnp.asarray(view).tolist() == expected.tolist()
        assert torch.equal(torch.from_dlpack(view), expected)
        capsule = torch.utils.dlpack.to_dlpack(view)
        assert torch.equal(torch.utils.dlpack.from_dlpack(capsule), expected)
    assert x.__dlpack_device__() == (1, 0)
    assert jax.dlpack.from_dlpack(x.bfloat16()).dtype == jnp.bfloat16


def test_what_was_handed_out_does_not_change(x):
    array = jax.dlpack.from_dlpack(x)
    seen = np.from_dlpack(x)
    x.add_(1)
    x[0].zero_()
    assert array.tolist() == seen.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert x.tolist() == [[0, 0, 0], [5, 6, 7]]


def test_refusals(x):
    with pytest.raises(BufferError, match="require gradient"):
        x.requires_grad_().__dlpack__()
    with pytest.raises(BufferError, match="conjugate"):
        torch.ones(2, dtype=torch.complex64, device="jax").conj().__dlpack__()


def test_in_by_dlpack():
    array = jnp.arange(6.0).reshape(2, 3)
    tensor = torch.jax.from_dlpack(array)
    assert tensor.is_jax
    assert tensor.untyped_storage().buffer.array is array
    tensor.mul_(2)
    assert tensor.sum() == 30
    assert array.sum() == 15
    assert torch.from_dlpack(array, device="jax").is_jax
    assert torch.from_dlpack(array).device.type == "cpu"
    assert torch.jax.from_dlpack(np.arange(3)).tolist() == [0, 1, 2]
    assert torch.jax.from_dlpack(torch.arange(3)).is_jax
    assert torch.jax.from_dlpack(jnp.ones(2, jnp.bfloat16)).dtype == torch.bfloat16


def test_a_tensor_over_a_users_array_leaves_the_array_alone():
    array = jnp.zeros(4)
    tensor = torch.jax.from_dlpack(array)
    for _ in range(3):
        tensor.add_(1)
    assert array.tolist() == [0] * 4
    assert not array.is_deleted()
    assert tensor.tolist() == [3] * 4


def test_constructors_take_host_data():
    array = np.arange(3)
    for tensor in (
        torch.tensor(array, device="jax"),
        torch.as_tensor(array, device="jax"),
        torch.asarray(array, device="jax"),
        torch.from_numpy(array).jax(),
    ):
        assert tensor.is_jax
        assert tensor.dtype == torch.int64
        assert tensor.tolist() == [0, 1, 2]
    array[0] = 9
    assert tensor[0] == 0
    assert torch.tensor(list(tensor), device="cpu").tolist() == [0, 1, 2]


def test_printing_and_python_values(x):
    assert repr(x[0]) == "tensor([1., 2., 3.], device='jax:0')"
    assert "requires_grad=True" in repr(x.clone().requires_grad_())
    assert "grad_fn=<AddBackward0>" in repr(x.clone().requires_grad_() + 1)
    assert repr(torch.empty(0, device="jax")) == "tensor([], device='jax:0')"
    assert f"{x[0, 0]:.2f}" == "1.00"
    assert x.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert [int(v) for v in x[1]] == [4, 5, 6]
    assert bool(x[0, 0] > 0)
    assert list(range(10))[x[0, 2].long()] == 3
    assert len(x) == 2


def test_pinned_memory_and_non_blocking_copies(x):
    host = torch.ones(3)
    assert not host.is_pinned()
    pinned = host.pin_memory()
    assert pinned.is_pinned()
    assert torch.equal(pinned, host)
    assert pinned.pin_memory() is pinned
    moved = pinned.to("jax", non_blocking=True)
    assert moved.tolist() == [1, 1, 1]
    assert moved.to("cpu", non_blocking=True).tolist() == [1, 1, 1]
    assert not x.is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        x.pin_memory()
    x[0].copy_(pinned, non_blocking=True)
    assert x.tolist() == [[1, 1, 1], [4, 5, 6]]


_EARLY = """
import torch
from torch.utils.dlpack import to_dlpack
host = torch.arange(3.0)
assert torch.from_dlpack(to_dlpack(host)).tolist() == [0, 1, 2]
ours = torch.arange(3.0, device="jax")
capsules = to_dlpack(ours), to_dlpack(ours[1:]), torch.utils.dlpack.to_dlpack(ours * 2)
assert [torch.from_dlpack(c).tolist() for c in capsules] == [[0, 1, 2], [1, 2], [0, 2, 4]]
"""


def test_a_capsule_by_what_was_imported_before_the_device_was_used():
    subprocess.run([sys.executable, "-c", _EARLY], check=True, timeout=300)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3).to_sparse().to("jax"),
        lambda: torch.ones(3, device="jax").to_sparse(),
        lambda: torch.ones(3, 3).to_sparse_csr().to("jax") + 1,
        lambda: torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), device="jax"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_other_layouts_are_refused(make):
    with pytest.raises((NotImplementedError, RuntimeError), match=r"dense|layout"):
        make()
