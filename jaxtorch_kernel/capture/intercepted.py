"""The methods of torch that are replaced while a differentiable trace is open.

`functions.py` fills this registry. Its rules trace bodies, and every trace, including that of a body, holds the
replacements.
"""

from __future__ import annotations

from ..base.replaced import Replaced

intercepted = Replaced()
