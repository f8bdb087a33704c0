"""`torch.autocast("jax")` against cuda's documented lists, and `GradScaler`."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from jaxtorch.device import autocast

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
HALVES = [torch.bfloat16, torch.float16]


def randn(*size, dtype=torch.float32):
    return torch.randn(*size, device="jax").to(dtype)


LOWER = {
    "mm": lambda a: a @ a,
    "linear": lambda a: F.linear(a, a),
    "bmm": lambda a: torch.bmm(a[None], a[None]),
    "addmm": lambda a: torch.addmm(a, a, a),
    "einsum": lambda a: torch.einsum("ij,jk->ik", a, a),
    "conv1d": lambda a: F.conv1d(a[None], a[:, :, None]),
    "conv2d": lambda a: F.conv2d(a[None, :, None], a[:, :, None, None]),
    "prelu": lambda a: F.prelu(a, a[0, :1]),
    "scaled_dot_product_attention": lambda a: F.scaled_dot_product_attention(
        a[None], a[None], a[None]
    ),
    "mv": lambda a: a @ a[0],
    "baddbmm": lambda a: torch.baddbmm(a[None], a[None], a[None]),
    "LSTMCell": lambda a: nn.LSTMCell(4, 4, device="jax")(a)[0],
    "GRUCell": lambda a: nn.GRUCell(4, 4, device="jax")(a),
}
FLOAT32 = {
    "exp": torch.exp,
    "log": lambda a: torch.log(a.abs() + 1),
    "pow": lambda a: a**2,
    "rsqrt": lambda a: torch.rsqrt(a.abs() + 1),
    "softplus": F.softplus,
    "layer_norm": lambda a: F.layer_norm(a, (4,)),
    "group_norm": lambda a: F.group_norm(a, 2),
    "mse_loss": lambda a: F.mse_loss(a, a),
    "l1_loss": lambda a: F.l1_loss(a, a),
    "cross_entropy": lambda a: F.cross_entropy(a, torch.arange(4, device="jax")),
    "bce_with_logits": lambda a: F.binary_cross_entropy_with_logits(a, a.sigmoid()),
    "softmax": lambda a: a.softmax(-1),
    "log_softmax": lambda a: a.log_softmax(-1),
    "sum": lambda a: a.sum(),
    "sum over a dimension": lambda a: a.sum(1),
    "prod": lambda a: a.prod(),
    "cumsum": lambda a: a.cumsum(0),
    "vector norm": lambda a: torch.linalg.vector_norm(a),
    "norm": lambda a: a.norm(),
    "norm over a dimension": lambda a: a.norm(2, 1),
    "cdist": lambda a: torch.cdist(a, a),
    "interpolate": lambda a: F.interpolate(a[None, None], scale_factor=2),
}
UNCHANGED = {
    "add": lambda a: a + a,
    "relu": torch.relu,
    "max_pool": lambda a: F.max_pool1d(a, 2),
    "sin": torch.sin,
    "embedding": lambda a: F.embedding(torch.arange(3, device="jax"), a),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", LOWER)
def test_lower_precision(name, dtype):
    with torch.autocast("jax", dtype=dtype):
        assert LOWER[name](randn(4, 4)).dtype == dtype
        if (
            "Cell" not in name
        ):  # a cell's float32 weights are cast and its float64 input is not, as on cuda
            assert LOWER[name](randn(4, 4).double()).dtype == torch.float64
    assert LOWER[name](randn(4, 4)).dtype == torch.float32


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", FLOAT32)
def test_float32(name, dtype):
    with torch.autocast("jax", dtype=dtype):
        assert FLOAT32[name](randn(4, 4, dtype=dtype)).dtype == torch.float32


@pytest.mark.parametrize("name", UNCHANGED)
def test_operators_in_no_list_keep_their_dtypes(name):
    with torch.autocast("jax", dtype=torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            assert UNCHANGED[name](randn(4, 4, dtype=dtype)).dtype == dtype


def test_widest():
    full, half = randn(4), randn(4, dtype=torch.bfloat16)
    with torch.autocast("jax", dtype=torch.bfloat16):
        assert torch.atan2(full, half).dtype == torch.float32
        assert torch.dot(half, full).dtype == torch.float32
        assert torch.addcmul(half, half, half).dtype == torch.bfloat16


def test_lists_are_those_of_cuda():
    """Every operator with a kernel for autocast on cuda has one here (cuDNN's own aside)."""
    names = torch._C._dispatch_get_all_op_names()

    def with_kernel(key):
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        return {n for n in names if has(n, key)}

    torch.zeros(1, device="jax")
    missing = with_kernel("AutocastCUDA") - with_kernel("AutocastPrivateUse1")
    assert {n for n in missing if "cudnn" not in n} == set()
    lists = [autocast.LOWER_PRECISION, autocast.FLOAT32, autocast.FLOAT32_BY_DTYPE, autocast.WIDEST]
    every = [name for names in lists for name in names]
    assert len(every) == len(set(every))


def test_values_are_those_of_explicit_casts():
    a, b = randn(8, 8), randn(8, 8)
    with torch.autocast("jax", dtype=torch.bfloat16):
        got = (a @ b).softmax(-1)
    expected = (a.cpu().bfloat16() @ b.cpu().bfloat16()).float().softmax(-1)
    torch.testing.assert_close(got.cpu(), expected, atol=1e-2, rtol=1e-2)


def test_default_dtype_nesting_and_decorator():
    a = randn(4, 4)
    with torch.autocast("jax"):
        assert (a @ a).dtype == torch.get_autocast_dtype("jax")
        with torch.autocast("jax", enabled=False):
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype != torch.float32

    @torch.autocast("jax", dtype=torch.float16)
    def product(x):
        return x @ x

    assert product(a).dtype == torch.float16
    assert (a @ a).dtype == torch.float32


def test_cpu_tensors_are_left_alone():
    with torch.autocast("jax", dtype=torch.bfloat16):
        a = torch.randn(4, 4)
        assert (a @ a).dtype == torch.float32


def test_gradients_have_the_parameters_dtype():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)).to("jax")
    reference = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    reference.load_state_dict(model.state_dict())
    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    with torch.autocast("jax", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x.jax()), y.jax())
    loss.backward()
    F.cross_entropy(reference(x), y).backward()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        assert p.grad.dtype == torch.float32
        torch.testing.assert_close(p.grad.cpu(), q.grad, atol=2e-2, rtol=5e-2)


def test_binary_cross_entropy_is_refused():
    with (
        torch.autocast("jax", dtype=torch.float16),
        pytest.raises(RuntimeError, match="unsafe to autocast"),
    ):
        F.binary_cross_entropy(randn(3).sigmoid(), randn(3).sigmoid())


def test_unsupported_dtype_disables_with_a_warning():
    with pytest.warns(UserWarning, match="not supported"), torch.autocast("jax", dtype=torch.int8):
        pass


def test_grad_scaler_scales_skips_and_recovers():
    model = nn.Linear(4, 2).jax()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("jax", init_scale=8.0, growth_interval=1)
    x = randn(3, 4)

    def step(factor):
        optimizer.zero_grad()
        with torch.autocast("jax", dtype=torch.float16):
            loss = model(x).square().mean() * factor
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    before = model.weight.detach().clone()
    step(float("inf"))
    assert torch.equal(model.weight, before)
    assert scaler.get_scale() == 4.0
    step(1.0)
    assert not torch.equal(model.weight, before)
    assert scaler.get_scale() == 8.0
    state = scaler.state_dict()
    other = torch.amp.GradScaler("jax")
    other.load_state_dict(state)
    assert other.get_scale() == 8.0
