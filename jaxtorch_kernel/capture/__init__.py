"""Captures torch code as one JAX function."""

from . import functions as functions  # what every trace intercepts
