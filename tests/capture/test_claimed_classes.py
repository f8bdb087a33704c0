"""Objects that claim to be of another class, as mocks and proxies do: traced once, and their changes are seen."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

import jaxtorch
from jaxtorch.programs import stats


class Proxy:
    __class__ = property(lambda self: int)  # type: ignore[assignment]  # what `wrapt.ObjectProxy` does

    def __init__(self, k: int):
        self.k = k

    def __len__(self) -> int:
        return self.k

    @property
    def twice(self) -> int:
        return self.k * 2


READS = {
    "a special method": lambda o, x: x * len(o),
    "a property": lambda o, x: x * o.twice,
    "an attribute": lambda o, x: x * o.k,
}


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
@pytest.mark.parametrize("read", READS)
def test_a_proxy(read: str, capture: Any) -> None:
    proxy = Proxy(3)
    code = READS[read]

    @capture
    def f(x: torch.Tensor) -> Any:
        return code(proxy, x)

    x = torch.ones(2, device="jax")
    for k in (3, 5):
        proxy.k = k
        expected = code(proxy, torch.ones(2))
        assert torch.equal(f(x).cpu(), expected)
        since = len(stats.compiled)
        for _ in range(3):
            assert torch.equal(f(x).cpu(), expected)
        assert len(stats.compiled) == since


def test_a_mock() -> None:
    settings = mock.Mock(spec=Proxy)
    settings.k = 2.0
    f = jaxtorch.pure(lambda x: x * settings.k)
    x = torch.ones(2, device="jax")
    assert f(x).tolist() == [2.0, 2.0]
    settings.k = 3.0
    assert f(x).tolist() == [3.0, 3.0]
