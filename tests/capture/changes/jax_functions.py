"""What a JAX function reads that captured code calls by `call_jax`: NumPy and JAX arrays, numbers, other functions."""

from __future__ import annotations

from .harness import CAPTURES, Row

# On the CPU, the same function runs without torch.
_CALL = """
import functools
import jax
import jax.numpy as jnp
import jaxtorch
import numpy as np
def call(f, *args):
    if dev == "jax":
        return jaxtorch.call_jax(f, *args)
    return torch.from_numpy(np.array(f(*[a.numpy() for a in args])))
"""
_ARRAYS = {
    "an array": ("np.ones(4, dtype='f4')", ("w[0] = 3", "w[1] = 4", "w = np.zeros(4, dtype='f4')", "w[2] = 9")),
    "a scalar array": ("np.array(2, dtype='f4')", ("w[()] = 3", "w = np.array(9, dtype='f4')", "w[()] = 7")),
    "a view that is read only": ("base[:4]\nw.flags.writeable = False", ("base[0] = 3", "base[1] = 4")),
}  # fmt: skip
_USES = {
    "a product": "a * w",
    "a conversion": "a * jnp.asarray(w)",
    "a jitted function": "jax.jit(lambda b, v: b * v)(a, w)",
    "cond": "jax.lax.cond(a[0] > -9, lambda b: b * w, lambda b: b, a)",
    "scan": "jax.lax.scan(lambda c, t: (c * w, c), a, jnp.arange(2))[0]",
    "vmap": "jax.vmap(lambda b: b * w.sum())(a)",
    "a number": "a * float(w.sum())",
}


def _row(id: str, given: str, function: str, change: str | tuple[str, ...]) -> Row:
    return Row(
        f"{id}, by call_jax", _CALL + given, f"out = call({function}, x)", change, doors=CAPTURES
    )


_OF_ARRAYS = [
    _row(
        f"{array} in {use}",
        f"base = np.ones(8, dtype='f4')\nw = {make}\ndef f(a):\n    return {result}",
        "f",
        change,
    )
    for array, (make, change) in _ARRAYS.items()
    for use, result in _USES.items()
]
_OTHERS = [
    _row("an array of an object", "class M:\n    pass\nm = M()\nm.w = np.ones(4, dtype='f4')\n"
         "def f(a):\n    return a * m.w", "f", ("m.w[0] = 3", "m.w = np.zeros(4, dtype='f4')", "m.w[1] = 5")),
    _row("arrays in a list", "ws = [np.ones(4, dtype='f4')]\ndef f(a):\n"
         "    for w in ws:\n        a = a * w\n    return a", "f",
         ("ws[0][0] = 3", "ws.append(np.full(4, 2, dtype='f4'))", "ws[1][1] = 5")),
    _row("another array of JAX", "w = [jnp.ones(4)]\ndef f(a):\n    return a * w[0]", "f",
         ("w[0] = jnp.zeros(4)", "w[0] = jnp.full(4, 3.0)")),
    _row("a number", "k = 2.0\ndef f(a):\n    return jnp.sin(a) * k", "f", ("k = 3.0", "k = 4.0")),
    _row("a number in a list", "k = [2.0]\ndef f(a):\n    return jnp.sin(a) * k[0]", "f",
         ("k[0] = 3.0", "k.append(1)", "k[0] = 4.0")),
    _row("a number of a lambda", "k = 2.0", "lambda a: jnp.sin(a) * k", ("k = 3.0", "k = 4.0")),
    _row("a number of a class", "class M:\n    k = 2.0\n    def f(self, a):\n"
         "        return jnp.sin(a) * self.k\nm = M()", "m.f",
         ("M.k = 3.0", "m.k = 4.0", "m.k = 5.0", "del m.k")),
    _row("an argument of partial", "def g(a, k):\n    return a * k\nf = functools.partial(g, k=2.0)", "f",
         "f = functools.partial(g, k=3.0)"),
    _row("another function", "def f(a):\n    return jnp.sin(a)", "f", "def f(a):\n    return jnp.cos(a)"),
]  # fmt: skip

ROWS = [*_OF_ARRAYS, *_OTHERS]
