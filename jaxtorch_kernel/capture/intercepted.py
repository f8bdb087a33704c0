"""What of torch's is replaced while a differentiable trace is open.

`functions.py` fills it. Its rules trace bodies, and every trace holds the replacements, that of a body too.
"""

from __future__ import annotations

from ..base.replaced import Replaced

intercepted = Replaced()
