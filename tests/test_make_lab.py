"""`make lab`: its variables, and what its server shows."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def recipe(*variables: str) -> str:
    """The command that `make lab` runs, once the packages are installed."""
    make = ["make", "--no-print-directory", "-n", "-o", ".venv/lab.stamp", "lab", *variables]
    return subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_its_variables() -> None:
    plain = recipe()
    assert "--port" not in plain
    assert "--ip" not in plain
    given = recipe("PORT=8123", "HOST=0.0.0.0", "ARGS=--no-browser --expose-app-in-browser")
    assert {"--port=8123", "--ip=0.0.0.0", "--no-browser", "--expose-app-in-browser"} <= set(
        given.split()
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of the server that `make lab` starts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = recipe(
        f"PORT={port}",
        "HOST=127.0.0.1",
        "ARGS=--no-browser --IdentityProvider.token=lab --ServerApp.port_retries=0",
    )
    homes = {f"JUPYTER_{name}_DIR": str(tmp_path / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=ROOT,
        env=os.environ | homes,
        stderr=subprocess.DEVNULL,
    )
    yield f"http://127.0.0.1:{port}"
    process.send_signal(signal.SIGTERM)
    process.wait(30)


def asked(address: str) -> dict[str, object]:
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(f"{address}?token=lab") as reply:
                found: dict[str, object] = json.load(reply)
                return found
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def test_its_root_has_the_readme_and_the_docs(server: str) -> None:
    content = asked(f"{server}/api/contents")["content"]
    assert isinstance(content, list)
    assert {"README.md", "docs", "notebooks"} <= {entry["name"] for entry in content}
