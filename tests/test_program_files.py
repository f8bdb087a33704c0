"""The persistent compile cache: whatever its folder contains, a session compiles missing programs and continues."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import pytest

import jaxtorch
from jaxtorch.base.compile_cache import compile_cache
from jaxtorch.base.program_files import ProgramFiles, refusal

Damage = Callable[[Path, Path], object]  # to a file; another is there to take from


def _socket(path: Path, _: Path) -> None:
    path.unlink()
    here = os.getcwd()
    os.chdir(path.parent)  # an address is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def _instead(make: Callable[[Path], object]) -> Damage:
    def damage(path: Path, _: Path) -> None:
        path.unlink()
        make(path)

    return damage


DAMAGE: dict[str, Damage] = {
    "nothing": lambda path, other: None,
    "gone": lambda path, other: path.unlink(),
    "empty": lambda path, other: path.write_bytes(b""),
    "cut": lambda path, other: os.truncate(path, path.stat().st_size // 2),
    "cut within the hash": lambda path, other: os.truncate(path, 7),
    "a bit changed": lambda path, other: path.write_bytes(_flipped(path.read_bytes())),
    "another program's": lambda path, other: shutil.copy(other, path),
    "not a program": lambda path, other: path.write_bytes(b"rubbish" * 999),
    "a pipe": _instead(os.mkfifo),
    "a directory": _instead(Path.mkdir),
    "a link to nowhere": _instead(lambda path: path.symlink_to("nowhere")),
    "a link to itself": _instead(lambda path: path.symlink_to(path)),
    "a socket": _socket,
    "no right to read": lambda path, other: path.chmod(0),
}


def _flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_a_miss_and_replaced(tmp_path: Path, damage: str) -> None:
    files = ProgramFiles(tmp_path)
    files.put("jit_f-1", b"one" * 1000)
    files.put("jit_g-2", b"two" * 1000)
    DAMAGE[damage](files._file("jit_f-1"), files._file("jit_g-2"))
    known = files.get("jit_f-1")
    assert known in (None, b"one" * 1000)
    assert (known is not None) == (
        damage == "nothing" or (damage == "no right to read" and not os.geteuid())
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files.put("jit_f-1", b"one" * 1000)
    assert files.get("jit_f-1") == b"one" * 1000
    assert files.get("jit_g-2") == b"two" * 1000
    assert not list(tmp_path.glob(".*"))


SESSION = """
import jax, torch, jaxtorch
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
jaxtorch.config.update(compile_cache=True)
x = torch.arange(6.0).reshape(2, 3)
y = x.to("jax")
for f in (torch.exp, torch.tanh, torch.sin, torch.cos, torch.sqrt, torch.relu, torch.floor, torch.sigmoid,
          torch.square, torch.neg, torch.trunc, torch.ceil, torch.abs, torch.sign):
    print("ready", flush=True)
    torch.testing.assert_close(f(y).cpu(), f(x))
print(events.count("/jax/compilation_cache/cache_misses"), events.count("/jax/compilation_cache/cache_hits"))
"""


def session(folder: Path) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if "COMPILATION_CACHE" not in k}
    environment |= {"XDG_CACHE_HOME": str(folder), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, "-W", "always", "-c", SESSION],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def counts(folder: Path) -> tuple[int, int]:
    """Misses and hits of a session that ends well and says nothing."""
    process = session(folder)
    out, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert "cache" not in said
    assert "rror" not in said
    misses, hits = map(int, out.splitlines()[-1].split())
    return misses, hits


@pytest.mark.slow
def test_sessions_after_a_kill_and_after_damage(tmp_path: Path) -> None:
    folder = tmp_path / "jaxtorch"
    killed = session(tmp_path)
    deadline = time.monotonic() + 300
    while (
        time.monotonic() < deadline and len(list(folder.glob("*"))) < 3
    ):  # the third may be a part
        time.sleep(0.001)
    killed.kill()
    killed.communicate(timeout=300)
    left = len(list(folder.glob("*.xla")))
    assert left >= 2

    misses, hits = counts(tmp_path)
    assert hits == left
    assert misses > 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    files = sorted(folder.glob("*.xla"))
    kinds = [name for name in DAMAGE if name != "no right to read"]  # which root has
    assert len(files) == misses + hits > len(kinds)
    for path, name in zip(files, kinds, strict=False):
        DAMAGE[name](path, files[-1])
    again, found = counts(tmp_path)
    assert again == len(kinds) - 1  # all but "nothing"
    assert found == len(files) - again
    assert counts(tmp_path) == (0, len(files))


def test_a_write_that_is_cut_short_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ProgramFiles(tmp_path)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            files.put("key", b"value")
    assert not list(tmp_path.iterdir())
    # What a killed process left is removed after a while.
    part = tmp_path / ".abc.part"
    part.write_bytes(b"half")
    ProgramFiles(tmp_path).put("key", b"value")
    assert part.exists()
    os.utime(part, (1, 1))
    ProgramFiles(tmp_path).put("key", b"value")
    assert not part.exists()


def test_the_longest_unread_files_go(tmp_path: Path) -> None:
    files = ProgramFiles(tmp_path, limit=10_000)
    earlier = tmp_path / "jit_f-123-cache"
    earlier.write_bytes(b"x" * 1000)
    os.utime(earlier, (1, 1))
    (tmp_path / "mine.txt").write_bytes(b"x" * 1000)
    for n in range(30):
        files.put(f"key {n}", bytes(900))
        os.utime(files._file(f"key {n}"), (100 + n, 100 + n))
        assert files.get("key 0") is not None  # read, and so the newest
        assert sum(p.stat().st_size for p in tmp_path.glob("*.xla")) <= 10_000
    assert not earlier.exists()
    assert (tmp_path / "mine.txt").exists()
    assert files.get("key 29") is not None
    assert files.get("key 1") is None
    files.put("too much", bytes(20_000))
    assert files.get("too much") is None


def test_a_full_disk_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    files = ProgramFiles(tmp_path)
    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="No space left"):
        files.put("a", b"1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files.put("b", b"2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (0o700, None),
        (0o755, None),
        (0o770, "can write"),
        (0o702, "can write"),
        (0o777, "can write"),
    ],
)
def test_a_directory_of_others_is_refused(tmp_path: Path, mode: int, why: str | None) -> None:
    folder = tmp_path / "jaxtorch"
    folder.mkdir()
    folder.chmod(mode)
    found = refusal(folder)
    if why is None:
        assert found is None
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    else:
        assert found is not None
        assert why in found
        assert "\n" not in found


def test_another_owner_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert "another user" in (refusal(tmp_path) or "")


def test_where_it_is_refused_a_session_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = jax.config.jax_compilation_cache_dir
    (tmp_path / "jaxtorch").mkdir()
    (tmp_path / "jaxtorch").chmod(0o777)
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        with pytest.warns(UserWarning, match="chmod 700") as said:
            jaxtorch.config.update(compile_cache=True)
        assert len(said) == 1
        assert not compile_cache.active
        assert jax.config.jax_compilation_cache_dir is None
    finally:
        jaxtorch.config.update(compile_cache=False)
        jax.config.update("jax_compilation_cache_dir", before)
