"""JAX's persistent compilation cache, switched on for a session: a kernel started again compiles nothing anew.

JAX writes compiled programs to a directory when told to. Here it is told on request (`%jax on`, or
`jaxtorch.config.update(compile_cache=True)`), never by an import, with the thresholds at zero, since eager operators
are many and small. What the user has set, in JAX's configuration or its environment variables, is left as it is, and
what was changed is put back. The files are ours (`base/program_files.py`).
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from .program_files import DEFAULT_LIMIT, ProgramFiles, refusal

# What is set, and the environment variable by which the user may have set it.
_SETTINGS: dict[str, Any] = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


def directory() -> Path:
    """Where programs are kept: the user's cache directory, `$XDG_CACHE_HOME/jaxtorch` (`~/.cache/jaxtorch`)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "jaxtorch"


class CompileCache:
    """Who wants the cache, and what JAX's configuration was before."""

    def __init__(self) -> None:
        self._wanted: set[str] = set()
        self._before: dict[str, Any] = {}

    @property
    def active(self) -> bool:
        """Whether somebody asked for it."""
        return bool(self._wanted)

    def on(self, owner: str) -> None:
        """Switch it on for `owner`. A cache that the user has set up is used as it is.

        Where others may write to the directory it stays off, and a warning says so.
        """
        import jax

        if not self._wanted and self._free(jax):
            from .jax_private import use_program_files

            folder = directory()
            if why := refusal(folder):
                warnings.warn(f"jaxtorch keeps no compiled programs: {why}", stacklevel=3)
                return
            self._set(jax, "jax_compilation_cache_dir", str(folder))
            for name, value in _SETTINGS.items():
                if name.upper() not in os.environ:
                    self._set(jax, name, value)
            use_program_files(ProgramFiles(folder, _limit(jax)))
        self._wanted.add(owner)

    def off(self, owner: str) -> None:
        """Switch it off for `owner`; the last one out puts JAX's configuration back."""
        if owner not in self._wanted:
            return
        self._wanted.discard(owner)
        if not self._wanted and self._before:
            import jax

            for name, value in self._before.items():
                jax.config.update(name, value)
            self._before.clear()
            from .jax_private import use_program_files

            use_program_files(None)

    def _free(self, jax: Any) -> bool:
        """Whether the user has neither a cache nor asked for none."""
        unset = jax.config.jax_compilation_cache_dir is None
        return unset and jax.config.jax_enable_compilation_cache

    def _set(self, jax: Any, name: str, value: Any) -> None:
        self._before[name] = getattr(jax.config, name)
        jax.config.update(name, value)


def _limit(jax: Any) -> int | None:
    """Bytes of all files: what the user told JAX (-1: no limit), or our own."""
    told = jax.config.jax_compilation_cache_max_size
    if told == -1 and "JAX_COMPILATION_CACHE_MAX_SIZE" not in os.environ:
        return DEFAULT_LIMIT
    return None if told == -1 else int(told)


compile_cache = CompileCache()
