"""One JupyterLab, one browser and one notebook full of views for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from .lab import Lab, write
from .machines import PATIENCE, Server, chromium, jupyter, offline
from .training import Training

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with jupyter(tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("home")) as server:
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def context(browser: Browser, server: Server) -> Iterator[BrowserContext]:
    with offline(browser, server) as context:
        yield context


@pytest.fixture
def lab(
    context: BrowserContext, server: Server, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Lab]]:
    """Opens a notebook of these cells (or a file) in JupyterLab; no error may reach the page."""
    opened: list[Lab] = []

    def open_notebook(*cells: str, kind: type[Lab] = Lab, file: Path | None = None) -> Lab:
        if file is None:
            file = write(server.folder / f"{request.node.name}.ipynb", cells)
        opened.append(kind(context.new_page(), server.address, file))
        return opened[-1]

    yield open_notebook
    for one in opened:
        one.shut_down()
        assert not one.errors


@pytest.fixture(scope="session")
def training(browser: Browser, server: Server) -> Iterator[Training]:
    """A notebook in which a model is trained, with every view: once for the tests that only look and click."""
    with offline(browser, server) as context:
        notebook = Training(context.new_page(), server.address, server.folder)
        yield notebook
        notebook.shut_down()
        assert not notebook.errors
