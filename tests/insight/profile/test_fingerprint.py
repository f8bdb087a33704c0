"""The computed run numbers are those that XLA assigns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtorch.insight.profile.fingerprint import first_run, nth_run
from jaxtorch.insight.profile.record import record


@pytest.mark.parametrize("size", [3, 5])
def test_a_run_is_its_executables_number_and_its_place_among_the_launches(size: int) -> None:
    compiled = jax.jit(lambda x: jnp.tanh(x @ x)).lower(jnp.ones((size, size))).compile()
    running = compiled.runtime_executable()
    x = jnp.ones((size, size))
    for _ in range(3):
        compiled(x)
    events = record(lambda: [compiled(x) for _ in range(4)]).events
    first = first_run(running.fingerprint)
    assert first is not None
    nth = {nth_run(run, first) for run in np.unique(events.run[events.on_device]).tolist()}
    assert nth == {3, 4, 5, 6}


def test_a_run_of_another_executable_is_not_taken() -> None:
    assert nth_run(5, 9) is None
    assert nth_run(3, (1 << 32) - 2) == 5  # the count goes over its end
    assert first_run(b"1" * 65) is None
