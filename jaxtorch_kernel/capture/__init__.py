"""Torch code captured whole, as one JAX function."""
