"""Gradients that captured code has by a rule of its own, because JAX has none or another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import jaxtorch

Function = Callable[[torch.Tensor], torch.Tensor]


def _index(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([0, 2, 2, 1, 0], device=x.device)


def _ctc(x: torch.Tensor) -> torch.Tensor:
    targets = torch.tensor([[1, 2, 1], [3, 1, 0]], device=x.device)
    lengths = (torch.tensor([5, 4], device=x.device), torch.tensor([3, 2], device=x.device))
    log_probs = torch.stack([x, x.T], 1).log_softmax(-1)
    return F.ctc_loss(log_probs, targets, *lengths) * torch.ones((), device=x.device)


GRADIENTS: dict[str, Function] = {
    "matrix_exp": lambda x: torch.matrix_exp(x * 2),
    "scatter_reduce": lambda x: x.scatter_reduce(0, _index(x).expand(5, 5).T, x.T, "prod"),
    "index_reduce": lambda x: x[:3].index_reduce(0, _index(x), x, "prod", include_self=False),
    "segment_reduce": lambda x: torch.segment_reduce(
        x, "prod", lengths=torch.tensor([2, 0, 3], device=x.device)
    ),
    "i0": torch.i0,
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.T + torch.eye(5, device=x.device)),
    "eigvalsh of one triangle": torch.linalg.eigvalsh,
    "eigvalsh of the other": lambda x: torch.linalg.eigvalsh(x, UPLO="U"),
    "eigvals": lambda x: torch.linalg.eigvals(x).abs().sort()[0],
    "pinv of rank 2": lambda x: torch.linalg.pinv(x[:, :2] @ x[:2], rtol=1e-3),
    "ctc_loss": _ctc,
    "_safe_softmax": lambda x: torch.ops.aten._safe_softmax(
        x.masked_fill(_index(x)[:, None] == 2, -torch.inf), -1
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    def run(device: str, function: Function) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        x = torch.randn(5, 5, dtype=torch.float64)
        x[1, 1] = x[0, 3] = x[2, 3] = 0
        leaf = x.to(device).requires_grad_()
        y = function(leaf)
        generator = torch.Generator().manual_seed(1)
        y.backward(torch.randn(y.shape, generator=generator, dtype=y.dtype).to(device))
        assert leaf.grad is not None
        return y.detach().cpu(), leaf.grad.cpu()

    function = GRADIENTS[name]
    torch.testing.assert_close(run("jax", jaxtorch.pure(function)), run("cpu", function))
