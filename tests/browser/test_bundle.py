"""The bundle that is committed is what its sources make, and it needs nothing from elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
JS = ROOT / "widgets" / "js"
STATIC = ROOT / "widgets" / "static"


def npm(*command: str) -> None:
    done = subprocess.run(["npm", *command], cwd=JS, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_sources_are_right_by_their_own_types_and_tests() -> None:
    npm("run", "check")
    npm("test")


def test_the_committed_bundle_is_what_the_sources_make(tmp_path: Path) -> None:
    npm("run", "build", "--", "--outdir", str(tmp_path))
    for file in sorted(tmp_path.iterdir()):
        assert (STATIC / file.name).read_bytes() == file.read_bytes(), f"{file.name}: make widgets"
    assert {f.name for f in STATIC.iterdir()} == {f.name for f in tmp_path.iterdir()}


def test_the_shell_that_a_notebook_may_save_is_small_and_the_code_is_not_in_it() -> None:
    assert len((STATIC / "shell.js").read_bytes()) < 1200
    assert len((STATIC / "views.js").read_bytes()) < 700_000


def test_nothing_is_loaded_from_elsewhere() -> None:
    code = (STATIC / "shell.js").read_text() + (STATIC / "views.js").read_text()
    names = {"http://www.w3.org"}  # of XML namespaces: never fetched
    assert set(re.findall(r"https?://[\w.]+", code)) <= names
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|EventSource|importScripts)\b\(", code)


def test_the_lock_names_versions_and_no_machine() -> None:
    lock = (JS / "package-lock.json").read_text()
    assert not json.loads(lock).get("resolved")
    assert "resolved" not in lock
    own = json.loads((JS / "package.json").read_text())
    for version in (own["dependencies"] | own["devDependencies"]).values():
        assert re.fullmatch(r"[\d.]+", version)
