"""Every private hook of JAX that jaxtorch uses, and nothing else.

`tests/dispatch/test_private_hooks.py` fails with a clear message when a new jax changes one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def fast_call(compiled: jax.stages.Compiled) -> Callable[..., Any]:
    """The C++ entry point of a compiled program, which takes flat positional arrays.

    `Compiled.__call__` builds it at the first call and goes through one Python frame at every other (0.5 µs). Where
    a new jax hides it, the public call does the same, slower.
    """
    executable = getattr(compiled, "_executable", None)
    create = getattr(executable, "create_cpp_call", None)
    if create is None:
        return compiled
    parameters = compiled._params
    call = create(parameters)
    return compiled if call is None else call


def uncommitted(array: jax.Array) -> jax.Array:
    """The same memory as an array that JAX may place beside others, as it does a literal.

    An array of one device that a function closes over otherwise keeps that function from running over several.
    """
    if len(array.sharding.device_set) > 1 or not array.committed:
        return array
    try:
        return type(array)(array.aval, array.sharding, [array], committed=False)  # type: ignore[call-arg]  # ArrayImpl's, behind `type()`
    except TypeError:  # a new jax's constructor
        return array
