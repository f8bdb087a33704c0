"""How the compiled module comes to be: when it is compiled, loaded, and left out."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from jaxtorch.native import build, loading

# Writes the file after `-o`, as a compiler does.
COMPILER = '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nsleep 0.2\n: > "$2"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for compiled modules in which there is none."""
    monkeypatch.setenv("JAXTORCH_NATIVE_FOLDER", str(tmp_path / "native"))
    monkeypatch.delenv("JAXTORCH_NATIVE", raising=False)
    monkeypatch.setattr(loading, "_awaited", None)
    return tmp_path / "native"


def compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    script = folder.parent / "compiler"
    script.write_text(text)
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))


def wait_for(*paths: Path) -> None:
    for _ in range(100):
        if any(path.exists() for path in paths):
            return
        time.sleep(0.1)
    pytest.fail(f"none of {paths} appeared")


def run(code: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_another_torch_is_another_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.target()
    assert before == build.target()
    assert before.parent == folder
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert build.target() != before


def test_other_source_is_another_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = build.target()
    for source in build._SOURCES.glob("*.h"):
        (tmp_path / source.name).write_text(source.read_text())
    (tmp_path / "module.cpp").write_text("// another\n")
    monkeypatch.setattr(build, "_SOURCES", tmp_path)
    assert build.target() != before


def test_a_session_without_it_compiles_it_in_the_background(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(folder, monkeypatch, COMPILER)
    started = time.monotonic()
    assert loading._wanted() is None
    assert time.monotonic() - started < 0.2, "it waited for the compiler"
    wait_for(build.target())
    wait_for_end(folder)
    assert [p.name for p in folder.iterdir()] == [build.target().name]


def wait_for_end(folder: Path) -> None:
    for _ in range(100):
        if not list(folder.glob("*.lock")):
            return
        time.sleep(0.1)
    pytest.fail("the lock stayed")


def test_two_sessions_compile_it_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = folder.parent / "count"
    compiler(folder, monkeypatch, COMPILER.replace("sleep", f"echo >> {count}\nsleep"))
    loading._wanted()
    loading._wanted()
    wait_for(build.target())
    assert count.read_text() == "\n"


def test_what_failed_is_not_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = folder.parent / "count"
    compiler(folder, monkeypatch, f"#!/bin/sh\necho >> {count}\necho no such type >&2\nexit 1\n")
    assert loading._wanted() is None
    monkeypatch.setattr(loading, "calls", None)
    failed = Path(f"{build.target()}.failed")
    wait_for(failed)
    wait_for_end(folder)
    assert loading._wanted() is None
    time.sleep(0.5)
    assert count.read_text() == "\n"
    assert "no such type" in failed.read_text()
    assert loading.state() == f"in Python: the C++ compiler failed, see {failed}"
    loading.take_over()
    assert loading._awaited is None, "it looks at each step for what will never come"


def test_a_lock_that_was_left_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(folder, monkeypatch, COMPILER)
    folder.mkdir(mode=0o700)
    lock = Path(f"{build.target()}.lock")
    lock.touch()
    os.utime(lock, (0, 0))
    build.start()
    wait_for(build.target())


def test_the_error_of_the_compiler_is_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(folder, monkeypatch, "#!/bin/sh\necho no such type >&2\nexit 1\n")
    with pytest.raises(RuntimeError, match="no such type"):
        build.build()


def test_others_may_not_write_where_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(folder, monkeypatch, COMPILER)
    folder.mkdir()
    folder.chmod(0o777)
    build.target().write_bytes(b"")
    assert loading._wanted() is None
    build.target().unlink()
    with pytest.raises(RuntimeError, match="other users can write"):
        build.build()


def test_a_file_that_cannot_be_loaded(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    build.target().write_bytes(b"not a library")
    assert loading._wanted() is None


def test_the_status_says_why_it_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if loading.calls is not None:
        assert loading.state() == "in C++"
    monkeypatch.setattr(loading, "calls", None)
    assert loading.state() == f"in Python: {build.target()} cannot be loaded"
    with monkeypatch.context() as waiting:
        waiting.setattr(loading, "_awaited", build.target())
        assert "is being compiled" in loading.state()
    folder.chmod(0o777)
    assert "other users can write" in loading.state()
    monkeypatch.setattr(build, "compiler", lambda: None)
    assert "install g++" in loading.state()
    monkeypatch.setenv("JAXTORCH_NATIVE", "off")
    assert loading.state() == "in Python: JAXTORCH_NATIVE is off"


def test_it_is_used_here_if_it_can_be_compiled() -> None:
    """Otherwise its tests would be left out without a word."""
    off = os.environ.get("JAXTORCH_NATIVE") == "off"
    assert (loading.calls is None) == (off or build.missing() is not None)


USE = """
import torch, jaxtorch
from jaxtorch.native.loading import calls
x = torch.ones(3, device="jax")
print(calls is None, ((x + x)[1:] * 2).tolist())
"""


@pytest.mark.parametrize(
    "variables", [{"JAXTORCH_NATIVE": "off"}, {"PATH": "/nowhere", "CXX": ""}], ids=["off", "none"]
)
def test_without_it_calls_run_in_python(folder: Path, variables: dict[str, str]) -> None:
    assert run(USE, **variables) == "True [4.0, 4.0]"


def test_what_is_missing_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "c++")
    monkeypatch.setattr(build.sysconfig, "get_path", lambda name: "/nowhere")
    with pytest.raises(RuntimeError, match=r"no Python\.h: install python3-dev"):
        build.build()
    monkeypatch.setattr(build, "compiler", lambda: None)
    with pytest.raises(RuntimeError, match="no C\\+\\+ compiler"):
        build.build()
    assert loading._wanted() is None
    assert not list(folder.iterdir())


@pytest.mark.skipif(build.missing() is not None, reason=build.missing() or "")
def test_the_command_compiles_it_and_sessions_use_it(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for said in ("Compiled:", "Compiled before:"):
        result = subprocess.run(
            [sys.executable, "-m", "jaxtorch.native"], capture_output=True, text=True, check=True
        )
        assert result.stdout == f"{said} {build.target()}\n"
    assert run(USE) == "False [4.0, 4.0]"
