"""The IPython extension: `%jax` and its family. No engine logic here."""
