"""JAX's persistent compilation cache, enabled for a session, so that a restarted kernel need not recompile.

JAX can write compiled programs to a directory. This module enables that on request only (`%jax on`, or
`jaxtorch.config.update(compile_cache=True)`), never on import. It sets the thresholds to zero, since eager operators
are many and small. Settings that the user made, in JAX's configuration or its environment variables, are left alone.
When the cache is no longer wanted, the changed settings are restored. jaxtorch has its own file format
(`base/program_files.py`).
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from .program_files import DEFAULT_LIMIT, ProgramFiles, refusal

# The settings to change. The user may have set one by the environment variable of the same name in capitals.
_SETTINGS: dict[str, Any] = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


def directory() -> Path:
    """The directory for programs: the user's cache directory, `$XDG_CACHE_HOME/jaxtorch` (`~/.cache/jaxtorch`)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "jaxtorch"


class CompileCache:
    """Tracks who requested the cache, and what JAX's configuration was before."""

    def __init__(self) -> None:
        self._wanted: set[str] = set()
        self._before: dict[str, Any] = {}

    @property
    def active(self) -> bool:
        """Whether the cache was requested."""
        return bool(self._wanted)

    def on(self, owner: str) -> None:
        """Enable the cache for `owner`. A cache that the user has configured is used unchanged.

        If other users can write to the directory, the cache stays off, with a warning.
        """
        import jax

        if not self._wanted and self._free(jax):
            from .jax_private import use_program_files

            folder = directory()
            if why := refusal(folder):
                warnings.warn(
                    f"jaxtorch cannot cache compiled programs on disk: {why}", stacklevel=3
                )
                return
            self._set(jax, "jax_compilation_cache_dir", str(folder))
            for name, value in _SETTINGS.items():
                if name.upper() not in os.environ:
                    self._set(jax, name, value)
            use_program_files(ProgramFiles(folder, _limit(jax)))
        self._wanted.add(owner)

    def off(self, owner: str) -> None:
        """Disable the cache for `owner`; the last owner restores JAX's configuration."""
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
        """Whether the user has neither configured nor disabled a cache."""
        unset = jax.config.jax_compilation_cache_dir is None
        return unset and jax.config.jax_enable_compilation_cache

    def _set(self, jax: Any, name: str, value: Any) -> None:
        self._before[name] = getattr(jax.config, name)
        jax.config.update(name, value)


def _limit(jax: Any) -> int | None:
    """The size limit in bytes: the user's setting in JAX (-1: no limit), or jaxtorch's default."""
    limit = jax.config.jax_compilation_cache_max_size
    if limit == -1 and "JAX_COMPILATION_CACHE_MAX_SIZE" not in os.environ:
        return DEFAULT_LIMIT
    return None if limit == -1 else int(limit)


compile_cache = CompileCache()
