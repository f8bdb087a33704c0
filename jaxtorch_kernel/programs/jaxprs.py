"""Walks through the jaxprs of a traced program."""

from __future__ import annotations

from collections.abc import Iterator

from jax.extend.core import Jaxpr, jaxprs_in_params


def jaxprs(jaxpr: Jaxpr) -> Iterator[Jaxpr]:
    """A jaxpr, and each jaxpr within its equations (of a scan, a branch, a call) once."""
    seen = {id(jaxpr)}
    pending = [jaxpr]
    while pending:
        jaxpr = pending.pop()
        yield jaxpr
        for equation in jaxpr.eqns:
            for inner in jaxprs_in_params(equation.params):
                if id(inner) not in seen:
                    seen.add(id(inner))
                    pending.append(inner)
