"""The methods of torch that are replaced while a differentiable trace is open.

`functions.py` fills this registry. It cannot hold the table itself: its replacements trace bodies, and each trace, that
of a body too, puts the replacements into effect (`code_trace.py`).
"""

from __future__ import annotations

from ..base.replaced import Replaced

intercepted = Replaced()
