"""Torch functions called from JAX programs, with real torch kernels.

`torch2jax.py` is what a user calls. A call becomes one equation of the primitive in `primitive.py`, whose parameter
is a `Call` (`calls.py`): the torch function, or one that derives from it. `running.py` runs a call over memory that
belongs to JAX; `outputs.py` finds what a function returns without running it.
"""
