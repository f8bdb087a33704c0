"""A real IPython shell for each test, with the extension loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


@contextmanager
def new_shell() -> Iterator[InteractiveShell]:
    """A shell that has never heard of jaxtorch, until the scope ends."""
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell(config=config)
    yield shell
    shell.run_line_magic("unload_ext", "jaxtorch")
    torch.set_default_device(None)


@pytest.fixture
def bare() -> Iterator[InteractiveShell]:
    """A shell that has never heard of jaxtorch."""
    with new_shell() as shell:
        yield shell


@pytest.fixture
def shell(bare: InteractiveShell) -> InteractiveShell:
    """A shell after `%load_ext jaxtorch`."""
    bare.run_line_magic("load_ext", "jaxtorch")
    return bare
