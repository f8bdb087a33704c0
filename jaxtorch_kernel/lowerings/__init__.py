"""ATen operators as JAX functions, one file per family."""
