"""Which programs are compiled without XLA's fusion, because they have nothing to fuse.

A convolution of torch's layout is a call of a library, between transposes of its operands and its result. On the CPU,
XLA makes each transpose a loop of machine code, and its compiler takes 40 ms for one. Without the passes that fuse,
each is a copy between two layouts, which XLA's runtime makes without compiling anything: a convolution compiles in 8 ms
instead of 140, and runs as fast. The same holds for a copy of a permuted tensor.

Arithmetic would become slower: each operation would be a loop of its own. So this holds only for programs that consist
of convolutions, sums (which are one loop either way), and what moves data, in dtypes that the CPU has.

The pass that simplifies algebra expects that fusion ran before it. It turns a reshape of a copy between layouts into
the reshape alone, as if the copy changed nothing (jaxlib 0.10.2). A transpose of a dimension of size 1 may become a
reshape, and XLA itself reshapes the operands of a convolution with groups. So programs with one of these are compiled
without that pass, too, which takes 30 to 160 ms.

Programs on several devices are compiled with XLA's defaults. There each device has a part of a dimension, whose size
may be 1, and communication that was never tested without these passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn

from ..base.jax_private import CompilerOptions
from ..storage import placement
from .jaxprs import jaxprs

# These become a copy between layouts, alone or around a convolution.
_TRANSPOSED = {"conv_general_dilated", "transpose"}
_RESHAPED = {"expand_dims", "reshape", "squeeze"}
_MOVED = {"copy", "jit", "reduce_sum", "rev"} | _RESHAPED
# Other dtypes are converted to these, and without fusion the conversion is a loop of its own.
_DTYPES = (np.float32, np.float64)


def compiler_options(jaxpr: Jaxpr, avals: Sequence[jax.ShapeDtypeStruct]) -> CompilerOptions | None:
    """The options that a program is compiled with; None for XLA's defaults.

    Args:
        jaxpr: of the program.
        avals: its inputs, with their shardings if they are on a mesh.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((8, 3, 4), jnp.float32)
        >>> compiler_options(jax.make_jaxpr(lambda x: x.transpose(2, 0, 1))(x).jaxpr, [x])
        {'xla_disable_hlo_passes': 'fusion,fusion-wrapper'}
        >>> compiler_options(jax.make_jaxpr(lambda x: 2 * x.transpose(2, 0, 1))(x).jaxpr, [x])
    """
    equations = [equation for inner in jaxprs(jaxpr) for equation in inner.eqns]
    names = {equation.primitive.name for equation in equations}
    if not names & _TRANSPOSED or names - _TRANSPOSED - _MOVED or not _has_dtypes(equations):
        return None
    if placement.devices()[0].platform != "cpu" or any(map(_is_on_mesh, avals)):
        return None
    passes = "fusion,fusion-wrapper"
    if names & _RESHAPED or _has_ones(equations) or any(map(_has_groups, equations)):
        passes += ",algsimp"
    return {"xla_disable_hlo_passes": passes}


def _has_dtypes(equations: Iterable[JaxprEqn]) -> bool:
    return all(
        getattr(v.aval, "dtype", None) in _DTYPES
        for equation in equations
        for v in equation.outvars
    )


def _is_on_mesh(aval: jax.ShapeDtypeStruct) -> bool:
    return aval.sharding is not None and placement.on_mesh(aval.sharding)


def _has_groups(equation: JaxprEqn) -> bool:
    """Whether it is a convolution with groups, or the gradient of one."""
    counts = ("feature_group_count", "batch_group_count")
    return any(equation.params.get(name, 1) != 1 for name in counts)


def _has_ones(equations: Iterable[JaxprEqn]) -> bool:
    """Whether a dimension of some operand or result has the size 1."""
    return any(
        1 in getattr(v.aval, "shape", ()) for e in equations for v in (*e.invars, *e.outvars)
    )
