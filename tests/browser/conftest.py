"""JupyterLab on a port of its own and a headless Chromium, once for all tests of this folder."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Route, sync_playwright

from .lab import Lab
from .training import Training

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """JupyterLab: its address, its token, its folder."""
    folder = tmp_path_factory.mktemp("lab")
    home = tmp_path_factory.mktemp("home")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    options = {
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": folder,
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "IdentityProvider.token": token,
        "LabApp.expose_app_in_browser": True,
        "JupyterNotebookApp.expose_app_in_browser": True,
    }
    news = (
        home
        / "settings"
        / "@jupyterlab"
        / "apputils-extension"
        / "notification.jupyterlab-settings"
    )
    news.parent.mkdir(parents=True)
    news.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    command = [sys.executable, "-m", "jupyterlab", *(f"--{k}={v}" for k, v in options.items())]
    log = home / "log"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            if process.poll() is not None:
                pytest.fail(f"JupyterLab did not start:\n{log.read_text()}")
            try:
                urllib.request.urlopen(f"{address}/api?token={token}", timeout=5)
                break
            except OSError:
                time.sleep(0.1)
        yield address, token, folder
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "these tests need Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


def offline(browser: Browser, server: tuple[str, str, Path], outside: list[str]) -> BrowserContext:
    """A window that never goes beyond this machine; what it asked for elsewhere is put into `outside`."""
    address, token, _ = server
    context = browser.new_context(
        viewport={"width": 1280, "height": 1000},
        extra_http_headers={"Authorization": f"token {token}"},
        permissions=["clipboard-read", "clipboard-write"],
    )

    def refuse(route: Route) -> None:
        outside.append(route.request.url)
        route.abort()

    context.route(lambda url: not url.startswith((address, "blob:", "data:", "file:")), refuse)
    return context


@pytest.fixture
def context(browser: Browser, server: tuple[str, str, Path]) -> Iterator[BrowserContext]:
    """A window of its own."""
    outside: list[str] = []
    context = offline(browser, server, outside)
    yield context
    context.close()
    assert not outside


@pytest.fixture
def lab(
    context: BrowserContext, server: tuple[str, str, Path], request: pytest.FixtureRequest
) -> Iterator[Callable[..., Lab]]:
    """Opens a notebook of these cells in JupyterLab; no error may reach the page."""
    address, _, folder = server
    opened: list[Lab] = []

    def open_notebook(*cells: str, name: str = request.node.name, kind: type[Lab] = Lab) -> Lab:
        lab = kind(context.new_page(), address, folder, name, list(cells))
        opened.append(lab)
        return lab

    yield open_notebook
    for one in opened:
        one.shut_down()
        assert not one.errors


@pytest.fixture(scope="session")
def training(browser: Browser, server: tuple[str, str, Path]) -> Iterator[Training]:
    """A notebook in which a model is trained, with every view open: once for the tests that only look and click."""
    outside: list[str] = []
    context = offline(browser, server, outside)
    address, _, folder = server
    notebook = Training(context.new_page(), address, folder)
    yield notebook
    notebook.shut_down()
    context.close()
    assert not notebook.errors
    assert not outside
