"""JAX's persistent compilation cache, switched on for a session: a kernel started again compiles nothing anew.

JAX writes compiled programs to a directory when told to. Here it is told on request (`%jax on`, or
`jaxtorch.config.update(compile_cache=True)`), never by an import, with the thresholds at zero, since eager operators
are many and small. What the user has set, in JAX's configuration or its environment variables, is left as it is, and
what was changed is put back.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

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
        """Switch it on for `owner`. A cache that the user has set up is used as it is."""
        import jax

        if not self._wanted and self._free(jax):
            self._set(jax, "jax_compilation_cache_dir", str(directory()))
            for name, value in _SETTINGS.items():
                if name.upper() not in os.environ:
                    self._set(jax, name, value)
            _reset()
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
            _reset()

    def _free(self, jax: Any) -> bool:
        """Whether the user has neither a cache nor asked for none."""
        unset = jax.config.jax_compilation_cache_dir is None
        return unset and jax.config.jax_enable_compilation_cache

    def _set(self, jax: Any, name: str, value: Any) -> None:
        self._before[name] = getattr(jax.config, name)
        jax.config.update(name, value)


def _reset() -> None:
    # JAX looks at the directory once; this makes it look again.
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()


compile_cache = CompileCache()
