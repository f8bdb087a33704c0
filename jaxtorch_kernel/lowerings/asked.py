"""Operators whose Meta kernels let wrong arguments pass, which the CPU's kernel is asked about (`dispatch/asked.py`).

By name, without overload and without the underscore of the form in place. An operator is listed where PyTorch's
samples with one argument made wrong showed that the CPU raises and Meta does not; `tests/conformance/mistakes.py` makes
them. None is listed whose CPU kernel raises for zeros that stand for values, or takes long.
"""

from __future__ import annotations

# Samplers: their numbers have ranges, and shapes do not matter, so that they are asked without elements.
EMPTY = frozenset(
    """
    bernoulli cauchy exponential geometric log_normal normal normal_functional randint randint_like random uniform
    """.split()
)

# Asked for each key and each number.
ALWAYS = frozenset(
    """
    argsort sort
    """.split()
)

# Asked where the dtypes of the operands differ: the kernels are the costly ones.
SAME_DTYPE = frozenset(
    """
    addmm addbmm baddbmm addmv addr
    """.split()
)
