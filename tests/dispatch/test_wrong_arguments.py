"""Wrong arguments raise the CPU's error: kind and words, at every call, and with nothing written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jaxtorch

Tensor = torch.Tensor
Call = Callable[..., Any]


def _error(call: Call, *args: Any, **kwargs: Any) -> tuple[type, str] | None:
    try:
        call(*args, **kwargs)
    except Exception as error:
        return type(error), str(error).partition("\n")[0]
    return None


def _agree(call: Call, *args: Any) -> None:
    expected = _error(call, "cpu", *args)
    assert expected is not None
    assert _error(call, "jax", *args) == expected


def _x(device: str) -> Tensor:
    return torch.zeros(3, 4, device=device)


# What is called, a number that it takes, and one that it does not.
NUMBERS: dict[str, tuple[Call, Any, Any]] = {
    "geometric_": (lambda d, p: _x(d).geometric_(p), 0.5, 2.0),
    "exponential_": (lambda d, p: _x(d).exponential_(p), 0.5, -1.0),
    "cauchy_": (lambda d, p: _x(d).cauchy_(0.0, p), 0.5, -1.0),
    "log_normal_": (lambda d, p: _x(d).log_normal_(0.0, p), 0.5, -1.0),
    "bernoulli_": (lambda d, p: _x(d).bernoulli_(p), 0.5, 1.5),
    "uniform_": (lambda d, p: _x(d).uniform_(p, 1), 0, 2),
    "normal_": (lambda d, p: _x(d).normal_(0, p), 0.5, -1.0),
    "normal": (lambda d, p: torch.normal(0.0, p, (3,), device=d), 0.5, -1.0),
    "normal of means": (lambda d, p: torch.normal(_x(d), p), 0.5, -1.0),
    "random_": (lambda d, p: _x(d).random_(0, p), 5, -5),
    "randint": (lambda d, p: torch.randint(0, p, (3,), dtype=torch.uint8, device=d), 9, 300),
    "randint_like": (lambda d, p: torch.randint_like(_x(d).byte(), p), 9, 300),
    "renorm": (lambda d, p: _x(d).renorm(2, 0, p), 1.0, -1.0),
    "histc": (lambda d, p: _x(d).histc(4, 0, p), 1.0, -1.0),
    "fill_": (lambda d, p: _x(d).byte().fill_(p), 9, 300),
    "leaky_relu_": (
        lambda d, p: F.leaky_relu_(_x(d).requires_grad_() + 1, p).sum().backward(),
        0.5,
        -0.5,
    ),
    "elu_": (
        lambda d, p: F.elu_(_x(d).requires_grad_() + 1, p).sum().backward(),
        0.5,
        -0.5,
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_checked_at_every_call(name: str) -> None:
    call, good, bad = NUMBERS[name]
    call("jax", good)
    _agree(call, bad)
    call("jax", good)
    _agree(call, bad)


def test_a_number_is_checked_in_captured_code() -> None:
    with pytest.raises(RuntimeError, match="without overflow"):
        jaxtorch.pure(lambda x: x.byte().fill_(300))(_x("jax"))
    with pytest.raises(RuntimeError, match="expects p to be in"):
        jaxtorch.pure(lambda x: x.clone().geometric_(2.0))(_x("jax"))


def test_asking_leaves_the_cpus_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    _x("jax").geometric_(0.25)
    F.rrelu(_x("jax"), training=True)
    assert torch.equal(torch.rand(2), expected)


def _index(device: str, *numbers: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(numbers, dtype=dtype, device=device)


MISTAKES: dict[str, Call] = {
    "sort": lambda d: _x(d).sort(5),
    "argsort": lambda d: _x(d).argsort(5),
    "unique": lambda d: _x(d).unique(dim=5),
    "unique_consecutive": lambda d: _x(d).unique_consecutive(dim=5),
    "mask": lambda d: _x(d)[torch.ones(5, dtype=torch.bool, device=d)],
    "float as an index": lambda d: _x(d).__setitem__(_x(d)[0], 1.0),
    "bool as an index": lambda d: _x(d).index_select(0, _index(d, 1, dtype=torch.bool)),
    "int32 as an index": lambda d: _x(d).index_fill(0, _index(d, 1, dtype=torch.int32), 1),
    "put_": lambda d: _x(d).put_(_index(d, 0, 1), torch.zeros(3, device=d)),
    "put_ of another dtype": lambda d: _x(d).put_(_index(d, 0), _x(d).double()[0, :1]),
    "bucketize": lambda d: torch.bucketize(_x(d), _x(d)),
    "smooth_l1_loss": lambda d: F.smooth_l1_loss(_x(d), _x(d), beta=-1.0),
    "searchsorted": lambda d: torch.searchsorted(_x(d)[0], _x(d), side="wrong"),
    "addmm": lambda d: torch.addmm(torch.zeros(1, 3, 3, device=d), _x(d), _x(d).T),
    "addmm of dtypes": lambda d: torch.addmm(torch.zeros(3, 3, device=d).long(), _x(d), _x(d).T),
    "padding": lambda d: F.conv1d(_x(d), torch.zeros(2, 3, 2, device=d), padding=-1),
    "stride": lambda d: F.conv3d(*(torch.zeros([2] * 5, device=d),) * 2, stride=-1),
    "output padding": lambda d: F.conv_transpose1d(
        _x(d), torch.zeros(3, 2, 2, device=d), output_padding=3
    ),
    "bias": lambda d: F.conv1d(_x(d), torch.zeros(2, 3, 2, device=d), torch.zeros((), device=d)),
    "target": lambda d: F.cross_entropy(_x(d), _index(d, 0, 0, 0, dtype=torch.int32)),
    "multinomial": lambda d: torch.multinomial(_x(d) + 1, 0),
    "weights": lambda d: torch.multinomial(_x(d) - 1, 1),
    "mixed heaviside": lambda d: torch.heaviside(_x(d), _x(d).long()),
    "complex": lambda d: torch.complex(_x(d), _x(d).double()),
    "65 dims": lambda d: torch.zeros([1] * 65).to(d).amax(),
    "out of another dtype": lambda d: torch.gather(
        _x(d), 0, _index(d, 0)[:, None], out=torch.zeros(1, 1, dtype=torch.float64, device=d)
    ),
    "complex out": lambda d: torch.complex(
        _x(d).double(), _x(d).double(), out=_x(d).to(torch.complex64)
    ),
}


@pytest.mark.parametrize("name", [n for n in MISTAKES if n not in ("weights", "65 dims")])
def test_a_mistake_has_the_cpus_words(name: str) -> None:
    _agree(MISTAKES[name])


def test_a_mistake_that_is_seen_elsewhere_has_the_cpus_kind() -> None:
    with pytest.raises(RuntimeError, match="element < 0"):
        MISTAKES["weights"]("jax")
    with pytest.raises(RuntimeError, match="up to 64 dims"):
        MISTAKES["65 dims"]("jax")
    nan = torch.full((2, 2), torch.nan)
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError, match="should not contain infs or NaNs"):
            torch.linalg.eig(nan.to(device))


def test_what_is_no_mistake() -> None:
    x = _x("jax")
    assert x.copy_(3.0).sum().item() == 36
    image, kernel = torch.zeros(1, 0, 4, 4), torch.zeros(2, 0, 3, 3)
    assert F.conv2d(image.to("jax"), kernel.to("jax")).shape == F.conv2d(image, kernel).shape
    half = torch.ones(3, dtype=torch.float16, device="jax")
    assert torch.heaviside(half, half).dtype == torch.float16
    assert torch.addmm(half[:1, None], half[:, None], half[None]).shape == (3, 3)


def _square(device: str) -> Tensor:
    return torch.arange(9.0, device=device).reshape(3, 3)


OVERLAPS: dict[str, Call] = {
    "expanded": lambda x: x[0, :1].expand(3).add_(1),
    "transposed": lambda x: x.add_(x.T),
    "shifted": lambda x: x[1:].mul_(x[:-1]),
    "copied": lambda x: x[1:].copy_(x[:-1]),
    "out": lambda x: torch.add(x[1:], 1, out=x[:-1]),
    "out expanded": lambda x: torch.mul(x, 2, out=x[0, :1].expand(3, 3)),
    "gather": lambda x: torch.gather(x, 0, x.long(), out=x),
    "scatter": lambda x: x.scatter_(0, torch.zeros_like(x, dtype=torch.int64), x),
    "random": lambda x: x[0, :1].expand(3).normal_(),
    "cat": lambda x: torch.cat([x[:1], x[1:2]], out=x[:2]),
    "index_select": lambda x: torch.index_select(x, 0, torch.zeros_like(x[0]).long(), out=x),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_a_write_to_memory_that_overlaps(name: str) -> None:
    call = OVERLAPS[name]
    expected = _error(lambda d: call(_square(d)), "cpu")
    assert expected is not None
    for _ in range(2):
        x = _square("jax")
        assert _error(lambda _, x=x: call(x), "jax") == expected
        assert torch.equal(x.cpu(), _square("cpu"))


FINE: dict[str, Call] = {
    "itself": lambda x: x.mul_(x),
    "view of itself": lambda x: x[:2].add_(x[:2]),
    "other rows": lambda x: x[0].add_(x[1]),
    "columns": lambda x: x[:, 0].add_(x[:, 1]),
    "fill": lambda x: x[0, :1].expand(3).fill_(7),
    "out is the input": lambda x: torch.add(x, 1, out=x),
    "matrix": lambda x: x.T.add_(1),
}


@pytest.mark.parametrize("name", FINE)
def test_a_write_that_torch_takes(name: str) -> None:
    results = []
    for device in ("cpu", "jax"):
        x = _square(device)
        FINE[name](x)
        results.append(x.cpu())
    assert torch.equal(*results)


def test_whether_views_overlap_is_asked_for_each_offset() -> None:
    """Offsets are operands: the program of two rows that do not overlap is that of two that do."""
    x = torch.arange(12.0, device="jax")
    x[0:4].add_(x[4:8])
    with pytest.raises(RuntimeError, match="single memory location"):
        x[0:4].add_(x[2:6])
    x[4:8].add_(x[8:12])


def _attention(device: str, *sizes: tuple[int, ...], **options: Any) -> Tensor:
    query, key, value, *mask = (torch.zeros(size, device=device) for size in sizes)
    return F.scaled_dot_product_attention(query, key, value, *mask, **options)


GROUPED = {"enable_gqa": True}
# Sizes of query, key, value and mask that do not fit together.
UNFIT: dict[str, tuple[list[tuple[int, ...]], dict[str, bool]]] = {
    "query and key": ([(2, 3, 4), (2, 3, 5), (2, 3, 5)], {}),
    "key and value": ([(2, 3, 4), (2, 5, 4), (2, 6, 4)], {}),
    "batch": ([(2, 3, 4), (3, 3, 4), (3, 3, 4)], {}),
    "batch of values": ([(2, 3, 4), (2, 3, 4), (3, 3, 4)], {}),
    "mask": ([(2, 3, 4), (2, 3, 4), (2, 3, 4), (7, 7)], {}),
    "mask of more dimensions": ([(2, 3, 4), (2, 3, 4), (2, 3, 4), (2, 2, 3, 3)], {}),
    "fewer heads without enable_gqa": ([(2, 6, 3, 4), (2, 2, 3, 4), (2, 2, 3, 4)], {}),
    "heads that do not divide": ([(2, 6, 3, 4), (2, 4, 3, 4), (2, 4, 3, 4)], GROUPED),
    "batch of groups": ([(2, 4, 3, 4), (3, 2, 3, 4), (3, 2, 3, 4)], GROUPED),
    "no heads": ([(3, 4), (3, 4), (3, 4)], GROUPED),
}


@pytest.mark.parametrize("name", UNFIT)
def test_sizes_of_attention_that_do_not_fit(name: str) -> None:
    sizes, options = UNFIT[name]
    expected, found = (_error(_attention, device, *sizes, **options) for device in ("cpu", "jax"))
    assert found is not None
    # From torch 2.15 on, the CPU computes attention with more values than keys.
    assert found[0] is (RuntimeError if expected is None else expected[0])
    assert expected is not None or name == "key and value"


FIT: list[tuple[list[tuple[int, ...]], dict[str, bool]]] = [
    ([(2, 3, 4), (3, 4), (3, 4)], {}),
    ([(2, 2, 3, 4), (2, 1, 5, 4), (2, 1, 5, 6)], {}),
    ([(2, 2, 3, 4), (2, 2, 3, 4), (2, 1, 3, 4), (2, 1, 1, 3)], {}),
    ([(2, 4, 3, 4), (2, 2, 3, 4), (2, 1, 3, 4)], GROUPED),
    ([(2, 4, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)], GROUPED),
    ([(4, 3, 4), (2, 3, 4), (2, 3, 4), (3,)], GROUPED),
]


@pytest.mark.parametrize(("sizes", "options"), FIT)
def test_sizes_of_attention_that_fit(
    sizes: list[tuple[int, ...]], options: dict[str, bool]
) -> None:
    expected = _attention("cpu", *sizes, **options)
    assert _attention("jax", *sizes, **options).shape == expected.shape
