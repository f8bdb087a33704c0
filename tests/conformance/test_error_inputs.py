"""Every input that PyTorch's operator database says is wrong: the device raises the CPU's kind of exception."""

from __future__ import annotations

import jaxtorch

from .checks import entries, wrong_errors
from .gaps import GAPS

WITH_ERRORS = [name for name, op in entries().items() if op.error_inputs_func is not None]


def test_wrong_inputs_raise_as_on_the_cpu() -> None:
    total, wrong = 0, {}
    for name in WITH_ERRORS:
        count, found = wrong_errors(entries()[name])
        total += count
        if found:
            wrong[name] = found
    print(f"{total - sum(map(len, wrong.values()))} of {total} raise the CPU's kind of exception")
    declared = {name for name, kinds in GAPS.items() if "errors" in kinds}
    assert set(wrong) == declared, wrong
    assert total > 650
    assert sum(map(len, wrong.values())) < 0.02 * total


def test_wrong_values_raise_where_they_are_looked_at() -> None:
    with jaxtorch.config(check="indices"):
        for name in ("gather", "scatter", "scatter_add"):
            assert wrong_errors(entries()[name])[1] == []
