"""Calls both ways between torch and JAX."""
