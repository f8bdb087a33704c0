"""A CPU tensor without dimensions acts as a number beside tensors of the device, as with cuda."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.common_methods_invocations import BinaryUfuncInfo, op_db

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
