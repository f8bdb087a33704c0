"""Tracing, compiling and running a named JAX function, for eager operators, captured code and JAX calls."""
