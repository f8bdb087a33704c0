"""Sizes that no memory holds: a table, run by `test_sizes.py` in a process of its own, which must not end.

Each case is run on the CPU and on the device, and prints its name and what both raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import jaxtorch

OVER = 2**62  # elements: their bytes are beyond int64
HUGE = 2**50  # elements: their bytes are not, and no machine has them
SIDE = 2**40


def _one(device: str, *size: int) -> torch.Tensor:
    return torch.ones(1, device=device).expand(size) if size else torch.ones(1, device=device)


def _zero(device: str, *size: int) -> torch.Tensor:
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    return zero.expand(size) if size else zero


Case = Callable[[str], Any]

CASES: dict[str, Case] = {
    "empty": lambda d: torch.empty(OVER, device=d),
    "empty, a product": lambda d: torch.empty(SIDE, SIDE, device=d),
    "empty, the largest": lambda d: torch.empty(2**63 - 1, device=d),
    "empty, and a zero": lambda d: torch.empty(2**32, 2**32, 0, device=d),
    "empty, strides": lambda d: torch.empty(0, OVER, 4, device=d),
    "empty, huge": lambda d: torch.empty(HUGE, device=d),
    "empty, channels last": lambda d: torch.empty(
        SIDE, 2, SIDE, 2, device=d, memory_format=torch.channels_last
    ),
    "zeros": lambda d: torch.zeros(OVER, device=d),
    "zeros, huge": lambda d: torch.zeros(HUGE, device=d),
    "ones": lambda d: torch.ones(OVER, device=d),
    "full": lambda d: torch.full((OVER,), 1.0, device=d),
    "rand": lambda d: torch.rand(OVER, device=d),
    "rand, huge": lambda d: torch.rand(HUGE, device=d),
    "rand, huge, exported": lambda d: torch.from_dlpack(torch.rand(HUGE, device=d)),
    "rand, huge, its bytes": lambda d: torch.rand(HUGE, device=d).untyped_storage().cpu(),
    "rand, huge, as JAX has it": lambda d: jaxtorch.to_torch(
        jaxtorch.to_jax(torch.rand(HUGE, device=d)), device="cpu"
    ),
    "randn": lambda d: torch.randn(OVER, device=d),
    "randint": lambda d: torch.randint(3, (OVER,), device=d),
    "randperm": lambda d: torch.randperm(OVER, device=d),
    "normal": lambda d: torch.normal(0.0, 1.0, (OVER,), device=d),
    "multinomial": lambda d: torch.multinomial(_one(d), OVER, replacement=True),
    "empty_like": lambda d: torch.empty_like(_one(d, OVER)),
    "empty_like, huge": lambda d: torch.empty_like(_one(d, HUGE)),
    "zeros_like": lambda d: torch.zeros_like(_one(d, OVER)),
    "randn_like": lambda d: torch.randn_like(_one(d, OVER)),
    "resize_": lambda d: _one(d).resize_(OVER),
    "resize_, a product": lambda d: _one(d).resize_(SIDE, SIDE),
    "resize_, huge": lambda d: _one(d).resize_(HUGE),
    "empty_strided": lambda d: torch.empty_strided((2,), (OVER,), device=d),
    "empty_strided, a product": lambda d: torch.empty_strided((SIDE, SIDE), (SIDE, 1), device=d),
    "empty_strided, beyond": lambda d: torch.empty_strided((3,), (OVER,), device=d),
    "new_empty": lambda d: _one(d).new_empty(OVER),
    "new_zeros": lambda d: _one(d).new_zeros(OVER),
    "new_full": lambda d: _one(d).new_full((OVER,), 1.0),
    "new_empty_strided": lambda d: _one(d).new_empty_strided((2,), (OVER,)),
    "as_strided": lambda d: _one(d).as_strided((OVER,), (1,)),
    "set_": lambda d: _one(d).set_(_one(d).untyped_storage(), 0, (OVER,), (1,)),
    "storage": lambda d: torch.UntypedStorage(OVER, device=d),
    "bincount": lambda d: torch.bincount(_zero(d), minlength=OVER),
    "bincount, a large value": lambda d: torch.bincount(_zero(d) + 2**60),
    "histc": lambda d: torch.histc(_one(d), bins=OVER),
    "arange": lambda d: torch.arange(OVER, device=d),
    "arange, of floats": lambda d: torch.arange(0, 1e18, device=d),
    "arange, beyond": lambda d: torch.arange(0, 1e30, device=d),
    "linspace": lambda d: torch.linspace(0, 1, OVER, device=d),
    "eye": lambda d: torch.eye(2**31, device=d),
    "eye, a product": lambda d: torch.eye(SIDE, device=d),
    "tril_indices": lambda d: torch.tril_indices(SIDE, SIDE, device=d),
    "hann_window": lambda d: torch.hann_window(OVER, device=d),
    "vander": lambda d: torch.vander(_one(d), OVER),
    "repeat": lambda d: _one(d).repeat(OVER),
    "repeat, a product": lambda d: _one(d).repeat(SIDE, SIDE),
    "repeat, huge": lambda d: _one(d).repeat(HUGE),
    "repeat_interleave": lambda d: _one(d).repeat_interleave(OVER),
    "repeat_interleave, by a tensor": lambda d: _one(d).repeat_interleave(_zero(d) + OVER),
    "cat": lambda d: torch.cat([_one(d, OVER)] * 2),
    "cat, huge": lambda d: torch.cat([_one(d, HUGE)] * 2),
    "stack": lambda d: torch.stack([_one(d, OVER)] * 2),
    "clone": lambda d: _one(d, OVER).clone(),
    "contiguous": lambda d: _one(d, OVER).contiguous(),
    "double": lambda d: _one(d, HUGE).double(),
    "add": lambda d: _one(d, OVER) + 1,
    "add, huge": lambda d: _one(d, HUGE) + 1,
    "cumsum": lambda d: _one(d, HUGE).cumsum(0),
    "sort": lambda d: _one(d, HUGE).sort(),
    "outer": lambda d: torch.outer(_one(d, SIDE), _one(d, SIDE)),
    "matmul": lambda d: _one(d, SIDE, 1) @ _one(d, 1, SIDE),
    "diag": lambda d: torch.diag(_one(d, SIDE)),
    "index": lambda d: _one(d)[_zero(d, HUGE)],
    "gather": lambda d: _one(d).gather(0, _zero(d, HUGE)),
    "embedding": lambda d: F.embedding(_zero(d, HUGE), _one(d).view(1, 1)),
    "masked_select": lambda d: _one(d, HUGE).masked_select(_one(d) > 0),
    "one_hot": lambda d: F.one_hot(_zero(d), OVER),
    "pad": lambda d: F.pad(_one(d), (0, OVER)),
    "interpolate": lambda d: F.interpolate(_one(d).view(1, 1, 1), size=OVER),
    "fft": lambda d: torch.fft.fft(_one(d), n=OVER),
    "kron": lambda d: torch.kron(_one(d, SIDE), _one(d, SIDE)),
}
# The CPU computes these for ever, or need not.
WITHOUT_ORACLE: dict[str, Case] = {
    "sum": lambda d: _one(d, OVER).sum(),
    "mean of a product": lambda d: (_one(d, SIDE, 1) * _one(d, SIDE)).mean(),
    "to": lambda d: torch.ones(1, device="cpu").expand(HUGE).to(d),
    "captured": lambda d: jaxtorch.pure(lambda x: (x.expand(OVER) * 2).sum())(_one(d)),
    "captured, with gradients": lambda d: jaxtorch.pure(lambda x: (x.expand(OVER) * 2).sum())(
        _one(d).requires_grad_()
    ),
    "captured, a factory": lambda d: jaxtorch.pure(lambda x: x + torch.empty(OVER, device=d))(
        _one(d)
    ),
}


def outcome(case: Case, device: str) -> str:
    """What a case raises, or the first look at its values: XLA computes later."""
    try:
        for leaf in pytree.tree_leaves(case(device)):
            leaf.cpu()
    except RuntimeError:
        return "RuntimeError"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def run() -> None:
    for name, case in CASES.items():
        print(f"{name}: {outcome(case, 'cpu')}, {outcome(case, 'jax')}", flush=True)
    for name, case in WITHOUT_ORACLE.items():
        print(f"{name}: {outcome(case, 'jax')}", flush=True)
    print((torch.ones(2, device="jax") + 1).tolist(), flush=True)


if __name__ == "__main__":
    run()
