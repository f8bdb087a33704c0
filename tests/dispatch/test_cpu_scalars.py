"""A 0-dim CPU tensor as an argument of any operator, as in `x[rows] = torch.tensor(1.0)`: torch.cuda accepts many.

The result is that of the same tensor on the device, or torch's error about two devices.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.testing._internal.common_methods_invocations import BinaryUfuncInfo, op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import jaxtorch

Tensor = torch.Tensor
SAMPLES = 3  # of each operator
# Their results are random, or arbitrary.
RANDOM = ("normal", "multinomial", "bernoulli", "dropout", "empty", "rrelu", "resize_as_", "rand")
OPS = [op for op in op_db if torch.float32 in op.dtypes and not any(r in op.name for r in RANDOM)]


def _calls(op: OpInfo) -> Iterator[tuple[list[object], object, int]]:
    """The leaves of a call, their tree, and the index of a tensor that a 0-dim one replaces."""
    for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), SAMPLES):
        leaves, tree = tree_flatten((sample.input, sample.args, sample.kwargs))
        tensors = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
        for i in tensors:
            x = leaves[i]
            if op.name == "masked_scatter" and i == 0:
                continue  # it expands a tensor; torch.cuda refuses one on the CPU
            if len(tensors) > 1 and x.layout == torch.strided and x.numel():
                scalar = x.detach().reshape(-1)[0].clone()
                yield [*leaves[:i], scalar, *leaves[i + 1 :]], tree, i


def _run(op: OpInfo, leaves: list[object], tree: object, on_cpu: int | None) -> object:
    """The result of a call on the device, except for one tensor."""

    def placed(i: int, x: object) -> object:
        if not isinstance(x, Tensor):
            return x
        return x.detach().clone() if i == on_cpu else x.detach().clone().to("jax")

    torch.manual_seed(0)  # attention drops some of its weights
    input, args, kwargs = tree_unflatten([placed(i, x) for i, x in enumerate(leaves)], tree)
    return op(input, *args, **kwargs)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.formatted_name)
@pytest.mark.filterwarnings("ignore")
def test_as_on_the_device(op: OpInfo) -> None:
    for leaves, tree, i in _calls(op):
        try:
            expected = _run(op, leaves, tree, None)
        except Exception:
            continue  # the operator takes no 0-dim tensor there
        try:
            result = _run(op, leaves, tree, i)
        except RuntimeError as error:
            if "device" in str(error).lower():
                continue
            raise
        ours, theirs = (
            tree_map(lambda x: x.cpu() if isinstance(x, Tensor) else x, tree)
            for tree in (result, expected)
        )
        torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=1e-4, atol=1e-5)


# Some operators of torch have words of their own; those of Jiterator and of sparse tensors have no kernel here.
TORCHS_ERRORS = (
    "(on|have) the same device|to have (jax|cpu).* Device|expected tensor_indices_or_sections|"
    "Jiterator|only dense"
)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.formatted_name)
@pytest.mark.filterwarnings("ignore")
def test_a_larger_tensor_raises_torchs_error(op: OpInfo) -> None:
    for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), SAMPLES):
        leaves, tree = tree_flatten((sample.input, sample.args, sample.kwargs))
        tensors = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
        for i in tensors if len(tensors) > 1 else ():
            if leaves[i].layout != torch.strided or leaves[i].numel() < 2:
                continue
            try:
                _run(op, leaves, tree, i)  # some read only its shape
            except Exception as error:
                if not re.search(TORCHS_ERRORS, str(error)):
                    raise


BINARY = [
    op for op in op_db if isinstance(op, BinaryUfuncInfo) and not op.name.startswith("jiterator")
]  # which is cuda's


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("op", BINARY, ids=[op.formatted_name for op in BINARY])
def test_a_number_on_the_cpu(op: BinaryUfuncInfo, dtype: torch.dtype) -> None:
    if not op.supports_dtype(dtype, "cpu"):
        return
    tensor, number = torch.arange(1, 5).to(dtype), torch.tensor(2).to(dtype)
    for arguments in ((tensor, number), (number, tensor)):
        try:
            expected = op(*arguments)
        except (RuntimeError, TypeError) as error:  # of this dtype, or of a number in this place
            with pytest.raises(type(error)):
                op(*(a.to("jax") if a.dim() else a for a in arguments))
            continue
        result = op(*(a.to("jax") if a.dim() else a for a in arguments))
        assert result.device.type == "jax"
        assert result.dtype == expected.dtype
        torch.testing.assert_close(result.cpu(), expected)


INDEX = torch.tensor([0, 2])
WRITES: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "rows": lambda x, rows, value: x.__setitem__(rows, value),
    "rows and a column": lambda x, rows, value: x.__setitem__((rows, 1), value),
    "a mask": lambda x, rows, value: x.__setitem__(x > 0, value),
    "a mask of rows": lambda x, rows, value: x.__setitem__(x[:, 0] > 0, value),
    "a slice": lambda x, rows, value: x.__setitem__(slice(1, 3), value),
    "an element": lambda x, rows, value: x.__setitem__((1, 2), value),
    "added": lambda x, rows, value: x.index_put_((rows,), value, accumulate=True),
    "filled": lambda x, rows, value: x.index_fill_(0, rows, value),
    "masked": lambda x, rows, value: x.masked_fill_(x > 0, value),
    "all": lambda x, rows, value: x.fill_(value),
}
WAYS: dict[str, Callable[[Callable[..., object]], Callable[..., object]]] = {
    "eager": lambda f: f,
    "pure": lambda f: jaxtorch.pure(f),
    "jit": lambda f: jaxtorch.jit(f),
    "compile": lambda f: torch.compile(f, backend="jax"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", WRITES)
def test_a_value_that_is_written(kind: str, way: str) -> None:
    x = torch.linspace(-2, 2, 12).reshape(4, 3)
    value = torch.tensor(0.5)

    def write(x: Tensor, rows: Tensor) -> Tensor:
        x = x.clone()
        WRITES[kind](x, rows, value)
        return x

    result = WAYS[way](write)(x.to("jax"), INDEX.to("jax"))
    assert isinstance(result, Tensor)
    torch.testing.assert_close(result.cpu(), write(x, INDEX))


INTO_A_NUMBER: dict[str, Callable[[Tensor, Tensor], object]] = {
    "add": lambda total, x: total.add_(x),
    "iadd": lambda total, x: total.__iadd__(x),
    "clamp": lambda total, x: total.clamp_(max=x),
    "lerp": lambda total, x: total.lerp_(x, 0.5),
    "masked_fill": lambda total, x: total.masked_fill_(x > 0, 1),
    "foreach": lambda total, x: torch._foreach_add_([total], [x]),
}


@pytest.mark.parametrize("way", ["eager", "pure", "jit"])  # Dynamo raises errors of its own
@pytest.mark.parametrize("kind", INTO_A_NUMBER)
def test_a_write_to_the_cpu(kind: str, way: str) -> None:
    """`total = torch.tensor(0.0); total += loss`: the error of torch.cuda."""
    total, x = torch.tensor(0.0), torch.tensor(2.0, device="jax")
    found = r"found at least two devices, jax:0 and cpu! \(in .*_"
    with pytest.raises(RuntimeError, match=found):
        WAYS[way](lambda x: INTO_A_NUMBER[kind](total, x))(x)
    assert total == 0
