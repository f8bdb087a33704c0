"""`%jax on` and `%jax off`: what they change, and that `off` gives everything back."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from IPython.core.error import UsageError


def run(shell: Any, *lines: str) -> Any:
    """Run a cell and return its value; an exception of the cell is the test's."""
    result = shell.run_cell("\n".join(lines), store_history=False)
    result.raise_error()
    return result.result


def saved(tensor: torch.Tensor) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return file


def test_everything_made_without_a_device_is_made_on_jax(shell: Any) -> None:
    run(shell, "%jax on")
    assert run(shell, "import torch", "torch.tensor([1.0])").device.type == "jax"
    assert torch.zeros(2).device.type == "jax"
    assert torch.arange(3).device.type == "jax"
    assert torch.as_tensor([1, 2]).device.type == "jax"
    assert torch.nn.Linear(2, 2).weight.device.type == "jax"


def test_an_explicit_device_is_obeyed(shell: Any) -> None:
    run(shell, "%jax on")
    assert torch.zeros(2, device="cpu").device.type == "cpu"
    with torch.device("cpu"):
        assert torch.zeros(2).device.type == "cpu"
    assert torch.zeros(2).device.type == "jax"


def test_load_goes_to_the_default_device_unless_told(shell: Any) -> None:
    tensor = torch.arange(3.0, device="cpu")
    run(shell, "%jax on")
    assert torch.load(saved(tensor)).device.type == "jax"
    assert torch.load(saved(tensor)).tolist() == [0.0, 1.0, 2.0]
    assert torch.load(saved(tensor), map_location="cpu").device.type == "cpu"
    with torch.device("cpu"):
        assert torch.load(saved(tensor)).device.type == "cpu"
    run(shell, "%jax off")
    assert torch.load(saved(tensor)).device.type == "cpu"


@pytest.mark.parametrize("times", [1, 2, 3])
def test_off_restores_after_any_number_of_ons(shell: Any, times: int) -> None:
    for _ in range(times):
        run(shell, "%jax on")
    for _ in range(times):
        run(shell, "%jax off")
        assert torch.get_default_device() == torch.device("cpu")
        assert not torch.overrides._get_current_function_mode_stack()


def test_off_restores_another_default_device(shell: Any) -> None:
    torch.set_default_device("meta")
    run(shell, "%jax on")
    run(shell, "%jax off")
    assert torch.zeros(1).device.type == "meta"
    run(shell, "%jax off")
    assert torch.zeros(1).device.type == "meta"


def test_off_alone_changes_nothing(shell: Any) -> None:
    torch.set_default_device("jax")
    run(shell, "%jax off")
    assert torch.get_default_device().type == "jax"


def test_off_restores_after_the_user_changed_the_default_in_between(shell: Any) -> None:
    run(shell, "%jax on")
    torch.set_default_device("meta")
    run(shell, "%jax on")
    assert torch.zeros(1).device.type == "jax"
    run(shell, "%jax off")
    assert torch.zeros(1).device.type == "cpu"


def test_off_restores_after_a_cell_that_raised(shell: Any) -> None:
    run(shell, "import torch", "%jax on")
    for cell in (
        "with torch.device('cpu'):\n    raise ValueError('stop')",
        "with torch.device('meta'):\n    torch.zeros(2) @ torch.zeros(3)",
        "raise KeyboardInterrupt",
    ):
        assert not shell.run_cell(cell).success
        assert torch.zeros(1).device.type == "jax"
    run(shell, "%jax off")
    assert torch.zeros(1).device.type == "cpu"
    assert not torch.overrides._get_current_function_mode_stack()


@pytest.mark.parametrize("word", ["on", "off"])
def test_inside_a_block_it_is_refused_and_nothing_changes(shell: Any, word: str) -> None:
    if word == "off":
        run(shell, "%jax on")
    before = torch.get_default_device()
    with torch.device("meta"), pytest.raises(UsageError, match=r"with torch\.device"):
        shell.run_line_magic("jax", word)
    assert torch.get_default_device() == before


def test_it_says_what_holds_now(shell: Any, capsys: Any) -> None:
    run(shell, "%jax on")
    assert capsys.readouterr().out.startswith("Default device: jax:0 (cpu, ")
    run(shell, "%jax off")
    assert capsys.readouterr().out == "Default device: cpu\n"


def test_on_can_defer(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import jaxtorch
    from jaxtorch.storage.buffer import buffer_of

    try:
        run(shell, "%jax on --deferred")
        assert "deferred execution" in capsys.readouterr().out
        assert jaxtorch.config.execution == "deferred"
        y = run(
            shell,
            "import torch",
            "y = torch.ones(3) + 1",
            "pending = y.untyped_storage().buffer.pending",
            "y",
        )
        assert shell.user_ns["pending"]
        assert not buffer_of(y).pending, "the end of a cell computes it"
        assert y.tolist() == [2, 2, 2]
    finally:
        jaxtorch.config.update(execution="immediate")
