"""The base of all other packages: torch's and JAX's private interfaces, options, ambient state, the disk cache."""
