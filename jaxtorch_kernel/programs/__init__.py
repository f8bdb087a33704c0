"""One JAX function with a name: traced, compiled, run. Eager operators, captured code and JAX calls all use it."""
