"""`jaxtorch.distributed`: several processes as one program, over `jax.distributed`."""

from __future__ import annotations

from .parallel.processes import (
    barrier,
    initialize,
    is_initialized,
    rank,
    shutdown,
    world_size,
)

__all__ = ["barrier", "initialize", "is_initialized", "rank", "shutdown", "world_size"]
