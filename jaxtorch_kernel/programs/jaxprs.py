"""Walks through the jaxprs of a traced program."""

from __future__ import annotations

from collections.abc import Iterator

from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params

from .site import is_user_file


def user_line(equation: JaxprEqn) -> tuple[str, int] | None:
    """File and line of the innermost frame of the user's code that made an equation."""
    traceback = equation.source_info.traceback
    if traceback is None:
        return None
    own = ((f.file_name, f.line_num) for f in traceback.frames if is_user_file(f.file_name))
    return next(own, None)


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
