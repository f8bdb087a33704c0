"""Torch functions called from JAX programs, with real torch kernels.

`torch2jax.py` is the user interface. A call becomes one equation of the primitive in `primitive.py`, whose parameter
is a `TorchCall` (`calls.py`): the torch function or one derived from it. `running.py` runs a call on memory that
belongs to JAX; `outputs.py` infers what a function returns without running it.
"""
