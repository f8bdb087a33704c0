"""A directory of compiled programs, one file each, which replaces JAX's own cache.

JAX's cache writes an entry directly to its final path, never rewrites it, and cannot detect a damaged one. A process
that is killed while it writes leaves half a program. Every later session reads it, warns about it and recompiles. Here

* a file begins with a hash of its key and its content: a truncated, modified or misnamed file is ignored, and is
  replaced once the program is compiled;
* a file is written under a temporary name and then renamed, so that a killed process leaves no partial entry;
* only regular files are opened, because reading a pipe would block forever;
* when the total size exceeds the limit, the least recently read files are deleted.

Anyone who can write to the directory can run code in every process that reads it, so only the user may have access.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

DEFAULT_LIMIT = 5 << 30  # bytes
_SUFFIX = ".xla"
_EARLIER = "-cache"  # suffix of files that JAX itself used to write here; they are only deleted
_PART = ".part"
_ABANDONED = 3600.0  # seconds after which a partial file counts as abandoned
_HASH = hashlib.sha256().digest_size


def refusal(folder: Path) -> str | None:
    """The reason why programs cannot be kept in a directory, or None. Creates the directory if it is missing.

    Example:
        >>> from pathlib import Path
        >>> refusal(Path("/dev/null"))
        '/dev/null is not a directory'
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
        if state.st_uid != os.geteuid():
            return f"{folder} belongs to another user"
        if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"other users can write to {folder} and so run code here (`chmod 700` it if you trust its contents)"
        if state.st_mode & 0o077:
            folder.chmod(0o700)
    except FileExistsError:
        return f"{folder} is not a directory"
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return None


class ProgramFiles:
    """Compiled programs by key, as JAX's persistent cache asks for them.

    Args:
        folder: the directory.
        limit: total bytes of all files; None for no limit.
    """

    def __init__(self, folder: Path, limit: int | None = DEFAULT_LIMIT):
        self._path = folder  # JAX prints this attribute in its log
        self._limit = limit
        self._size: int | None = None  # of all files, as far as this process knows
        self._failed = False

    def get(self, key: str) -> bytes | None:
        """The program of this key; None if it is missing or damaged."""
        path = self._file(key)
        content = _read(path)
        if content is None or content[:_HASH] != _hash(key, content[_HASH:]):
            return None
        with suppress(OSError):
            os.utime(path)
        return content[_HASH:]

    def put(self, key: str, value: bytes) -> None:
        """Store a program, and replace an existing one. Warns once about an error of the file system."""
        content = _hash(key, value) + value
        if self._failed or (self._limit is not None and len(content) > self._limit):
            return
        try:
            self._make_room(len(content))
            self._write(self._file(key), content)
        except OSError as error:
            self._failed = True
            warnings.warn(
                f"jaxtorch stopped caching compiled programs in {self._path}: {error.strerror}",
                stacklevel=2,
            )

    def _file(self, key: str) -> Path:
        # A hash, because the key contains the name of a function and may be too long for a file name.
        return self._path / (hashlib.sha256(key.encode()).hexdigest()[:40] + _SUFFIX)

    def _write(self, path: Path, content: bytes) -> None:
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)  # the user may have deleted it
        descriptor, part = tempfile.mkstemp(_PART, ".", self._path)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
            with suppress(OSError):
                path.rmdir()  # an empty directory in its place; anything else is replaced
            with suppress(IsADirectoryError):
                os.replace(part, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part)

    def _make_room(self, count: int) -> None:
        """Delete the least recently read files if this one would exceed the limit.

        This goes down to 90 % of the limit, because listing the files takes a while and should be rare.
        """
        if self._limit is None:
            return
        if self._size is None or self._size + count > self._limit:
            files = sorted(self._files())
            self._size = sum(size for _, size, _ in files)
            goal = self._limit - self._limit // 10
            for _, size, path in files if self._size + count > self._limit else ():
                if self._size + count <= goal:
                    break
                with suppress(FileNotFoundError):  # another process deleted it
                    os.unlink(path)
                self._size -= size
        self._size += count

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """Time of the last read, bytes and path of each file. Deletes abandoned partial files."""
        with suppress(FileNotFoundError), os.scandir(self._path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    state = entry.stat(follow_symlinks=False)
                    if not stat.S_ISREG(state.st_mode):
                        continue
                    if entry.name.endswith((_SUFFIX, _EARLIER)):
                        yield state.st_mtime, state.st_size, entry.path
                    elif entry.name.endswith(_PART) and time.time() - state.st_mtime > _ABANDONED:
                        os.unlink(entry.path)


def _hash(key: str, value: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + value).digest()


def _read(path: Path) -> bytes | None:
    """The content of a regular file; None if there is no such file."""
    try:
        # O_NONBLOCK: opening a pipe would otherwise wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    with open(descriptor, "rb") as file, suppress(OSError):
        return file.read()
    return None
