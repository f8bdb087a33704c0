"""Calls between torch and JAX, in both directions."""
