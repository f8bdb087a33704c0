"""A real IPython shell for each test, with the extension loaded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


@pytest.fixture
def bare() -> Iterator[InteractiveShell]:
    """A shell that has never heard of jaxtorch."""
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell(config=config)
    yield shell
    shell.run_line_magic("unload_ext", "jaxtorch")
    torch.set_default_device(None)


@pytest.fixture
def shell(bare: InteractiveShell) -> InteractiveShell:
    """A shell after `%load_ext jaxtorch`."""
    bare.run_line_magic("load_ext", "jaxtorch")
    return bare
