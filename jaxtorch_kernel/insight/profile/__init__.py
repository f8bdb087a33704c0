"""Where the time goes: the events of `jax.profiler`, attributed to lines, modules and instructions, as plain data."""

from .record import ProfileError, record
from .summary import Profile, profile

__all__ = ["Profile", "ProfileError", "profile", "record"]
