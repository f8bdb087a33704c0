"""What neither the CPU nor cuda computes is refused with the CPU's error, for PyTorch's samples of what is listed."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from jaxtorch.lowerings.refused import REFUSED

from ..conformance.checks import call
from ..conformance.database import entries, on

DTYPES = (torch.int64, torch.bool, torch.complex64)

# Entry -> why the device's answer is not the CPU's.
OTHERWISE = {
    "histc": "the CPU counts booleans that are all equal, and is asked with zeros",
    "sparse.mm.reduce": "its matrix is sparse, which is refused first",
}


def _error(op: OpInfo, sample: SampleInput, device: str) -> tuple[type, str] | None:
    """Kind and first line of what the call raises."""
    try:
        call(op, "forward", on(op, sample, device))
    except Exception as error:
        return type(error), str(error).partition("\n")[0]
    return None


@pytest.mark.slow
def test_what_torch_refuses_is_refused() -> None:
    wrong = {}
    for name, op in entries().items():
        if op.name.split(".")[-1] not in REFUSED or name in OTHERWISE:
            continue
        for dtype in set(DTYPES).difference(op.dtypes, op.dtypesIfCUDA):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    sample = next(iter(op.sample_inputs("cpu", dtype)))
                except Exception:
                    continue  # there is none of this dtype
                expected = _error(op, sample, "cpu")
                actual = expected and _error(op, sample, "jax")
            if actual != expected:
                wrong[name, dtype] = (actual, expected)
    assert not wrong


def test_the_table_names_operators() -> None:
    assert [name for name in REFUSED if not hasattr(torch.ops.aten, name)] == []


def test_what_the_cpu_accepts_of_a_listed_kind_is_computed() -> None:
    """A listed kind is asked about, not refused: uint8 differs from other integers, and a promoted bool is a float."""
    image = torch.arange(16, dtype=torch.uint8).reshape(1, 1, 4, 4)
    mask = torch.tensor([True, False])
    for device in ("cpu", "jax"):
        grown = torch.nn.functional.interpolate(image.to(device), scale_factor=2)
        assert grown.dtype == torch.uint8
        assert (mask.to(device) ** 2.0).tolist() == [1.0, 0.0]
        assert (mask.to(device) % 2).tolist() == [1, 0]


@pytest.mark.parametrize("method", ["relu_", "floor_", "hardtanh_"])
def test_in_place_forms_are_refused_too(method: str) -> None:
    dtype = torch.complex64 if method == "hardtanh_" else torch.bool
    function = getattr(torch.nn.functional, method, None) or getattr(torch, method)
    errors = []
    for device in ("cpu", "jax"):
        x = torch.zeros(3, dtype=dtype, device=device)
        with pytest.raises(RuntimeError) as caught:
            function(x)
        errors.append((type(caught.value), str(caught.value)))
        assert (x == 0).all()
    assert errors[0] == errors[1]
