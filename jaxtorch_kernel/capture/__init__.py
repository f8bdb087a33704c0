"""Torch code captured whole, as one JAX function."""

from . import functions as functions  # what every trace intercepts
