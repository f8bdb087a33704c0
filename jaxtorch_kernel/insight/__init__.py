"""Reports what the engine did, as plain data. This package draws nothing and does not change the session.

import jaxtorch
jaxtorch.insight.programs()              # every XLA program of the session
jaxtorch.insight.explain_recompiles()    # why code was traced more than once
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .events import start as start
    from .events import stop as stop
    from .programs import ProgramInfo as ProgramInfo
    from .programs import program as program
    from .recompiles import Explanation as Explanation
    from .recompiles import explain_recompiles as explain_recompiles
    from .recompiles import functions as functions

# Name -> module. Loaded lazily: `import jaxtorch` must not import jax.
_LAZY = {
    "ProgramInfo": "programs",
    "program": "programs",
    "Explanation": "recompiles",
    "explain_recompiles": "recompiles",
    "functions": "recompiles",
    "start": "events",
    "stop": "events",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
