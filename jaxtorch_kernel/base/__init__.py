"""What every other package may use: torch's and JAX's private interfaces, options, ambient state, the disk cache."""
