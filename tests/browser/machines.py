"""What the tests of this folder run on: JupyterLab on a port of its own, and a headless Chromium."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Route, expect, sync_playwright

# How long anything may take, in milliseconds: a test waits for what it is about, and a machine may be busy otherwise.
PATIENCE = 120_000
expect.set_options(timeout=PATIENCE)

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

# Nothing happens but what a test does. When an automatic save of a busy page meets a test's own save, JupyterLab asks
# which of the two to keep, and its question covers the page.
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "docmanager-extension/plugin": {"autosave": False},
}


@dataclass(frozen=True)
class Server:
    """JupyterLab, running."""

    address: str
    token: str
    folder: Path


@contextmanager
def jupyter(folder: Path, home: Path) -> Iterator[Server]:
    """JupyterLab over `folder`; all that it writes of its own goes into `home`."""
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
    for plugin, settings in SETTINGS.items():
        file = home / f"settings/@jupyterlab/{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(settings))
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
        deadline = time.monotonic() + PATIENCE / 1000
        while not _answers(f"{address}/api?token={token}"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()}")
        yield Server(address, token, folder)
    finally:
        process.terminate()
        process.wait(30)


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5)
    except OSError:
        time.sleep(0.1)
        return False
    return True


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise RuntimeError("the views are tried in Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def offline(browser: Browser, server: Server) -> Iterator[BrowserContext]:
    """A window that never goes beyond this machine: a view that wanted to is an error."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 1000},
        extra_http_headers={"Authorization": f"token {server.token}"},
        permissions=["clipboard-read", "clipboard-write"],
    )
    context.set_default_timeout(PATIENCE)
    outside: list[str] = []

    def refuse(route: Route) -> None:
        outside.append(route.request.url)
        route.abort()

    here = (server.address, "blob:", "data:", "file:")
    context.route(lambda url: not url.startswith(here), refuse)
    yield context
    context.close()
    assert not outside, outside
