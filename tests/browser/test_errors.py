"""Errors of the device in JupyterLab: how many rows they take, wrapped as they are at 900 pixels."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

from .lab import RAN, Lab

SETUP = """
import torch
from torch import nn
%load_ext jaxtorch
%jax on
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
"""
FAILS = [
    "y = 1\nmodel(torch.randn(5, 4, device='cpu'))",
    "model(torch.randn(5, 7))",
    "torch.empty(1 << 50)",
    "y = torch.ones(1 << 14)\ny.view(-1, 1, 1) * y.view(1, -1, 1) * y",
    "y = model[0].weight * 2\ny.register_hook(lambda g: g @ g)\ny.sum().backward()",
    "%%pure\ny = torch.ones(5, 4)\nz = y @ y",
]
_ROWS = "e => e.getBoundingClientRect().height / parseFloat(getComputedStyle(e).lineHeight)"


def test_an_error_takes_at_most_25_rows(lab: Callable[..., Lab]) -> None:
    notebook = lab(SETUP, *FAILS)
    notebook.page.set_viewport_size({"width": 900, "height": 1100})
    notebook.run(0)
    for i, cell in enumerate(FAILS, 1):
        notebook.run(i, wait=False)
        expect(notebook.cell(i).locator(".jp-InputPrompt")).to_have_text(RAN)
        shown = notebook.show(i).locator("pre")
        expect(shown).to_have_count(1)
        expect(shown).to_contain_text("Error: ")
        assert "/jaxtorch/" not in shown.inner_text()
        assert 5 < shown.evaluate(_ROWS) <= 25, cell
