"""What several folders need.

Of a table of cases `make test` runs a sample, always the same: the first cases (`_FIRST`) and one in `_ONE_IN` of the
rest, or one in n of all where `@pytest.mark.sampled(n)` says so. `@pytest.mark.slow` is for tests of about ten seconds
and more whose mechanism a shorter one covers too; `make test` leaves them out. The files in `tests/` itself, about
documents and rules, and those of the browser, whose tests share a notebook, have no sample. `make thorough`
(`JAXTORCH_TESTS=all`) runs all.

`JAXTORCH_DEFERRED=MODE` runs the tests with deferred execution (`deferred/modes.py`).
"""

from __future__ import annotations

import gc
import os
import zlib
from collections import Counter
from collections.abc import Iterator

import jax
import pytest
import torch

import jaxtorch
from jaxtorch.programs import program_cache

from .deferred import modes

# Tests of immediate execution itself, by a part of their name, and why they say nothing of deferred execution.
_COUNTS = "counts what each call compiles"
_PROGRAM = "looks at the program of one operator"
_WHEN = "looks at what a call has done when it returns"
IMMEDIATE = {
    "test_parts.py": _COUNTS,
    "test_program_cache.py": _COUNTS,
    "test_compile_counts.py": _COUNTS,
    "test_composites.py::test_results_and_gradients_are_a_program_each": _COUNTS,
    "test_composites.py::test_a_number_that_changes_compiles_nothing": _COUNTS,
    "test_dynamic.py::test_sizes_share_programs": _COUNTS,
    "test_ctc.py::test_other_lengths_compile_nothing": _COUNTS,
    "test_foreach.py::test_many_tensors_of_many_dtypes_are_few_programs": _COUNTS,
    "test_foreach.py::test_numbers_in_a_list_are_operands": _COUNTS,
    "test_filling.py::test_few_calls_compile_nothing_and_many_compile_once": _COUNTS,
    "test_noise.py::test_new_shapes_compile_no_threefry": _COUNTS,
    "test_views.py::test_an_index_that_changes_compiles_once": _COUNTS,
    "test_composites.py::test_gradients_of_any_order": "gradcheck wants equal bits from equal calls",
    "test_optim.py::test_a_new_learning_rate_compiles_nothing": _COUNTS,
    "test_memory.py::test_in_place_updates_donate": _WHEN,
    "test_fusion.py": _PROGRAM,
    "test_input_names.py": _PROGRAM,
    "test_rnn.py::test_one_program_forward_and_one_backward": _PROGRAM,
    "test_rnn.py::test_training_and_evaluation_share_a_program": _PROGRAM,
    "test_order.py::test_a_number_that_changes_compiles_nothing": _COUNTS,
    "test_lightning.py::test_a_checkpoint_goes_on": "wants equal bits of windows that end at other calls",
    "test_policy.py": "sets its own mode",
    "test_late_errors.py": "a program that fails takes all results of its window with it",
}

if mode := os.environ.get("JAXTORCH_DEFERRED"):
    modes.use(mode)


_FIRST = 4
_ONE_IN = 12


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is not in the sample."""
    if os.environ.get("JAXTORCH_TESTS") == "all":
        return
    seen: Counter[str] = Counter()
    sample: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        function = item.nodeid.partition("[")[0]
        seen[function] += 1
        chosen = _is_in_sample(item, seen[function])
        (sample if chosen or _is_asked_for(config, item) else left_out).append(item)
    if left_out:
        items[:] = sample
        config.hook.pytest_deselected(items=left_out)


def pytest_collection() -> None:
    """Imports and tests are made in millions, and none is garbage: collecting it takes a fifth of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Full collections skip what the imports made: two million objects, and a second for each of hundreds of tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _is_in_sample(item: pytest.Item, number: int) -> bool:
    """By the name: a new case does not change which of the others run. `number`: of the case in its table, from 1."""
    if item.get_closest_marker("slow"):
        return False
    mark = item.get_closest_marker("sampled")
    whole = item.nodeid.count("/") == 1 or item.nodeid.startswith("tests/browser/")
    if mark is None and (whole or number <= _FIRST):
        return True
    one_in = _ONE_IN if mark is None else mark.args[0]
    return zlib.crc32(item.name.encode()) % one_in == 0


def _is_asked_for(config: pytest.Config, item: pytest.Item) -> bool:
    """Whether the command line names the test itself, as a developer does to repeat a failure."""
    return any(
        "::" in argument and item.nodeid.endswith(argument.rpartition("/")[2])
        for argument in config.invocation_params.args
    )


_MOST_PROGRAMS = 500
_forgotten = 0  # how many programs had been compiled when the caches were last cleared


@pytest.fixture(scope="module", autouse=True)
def _forget_programs() -> Iterator[None]:
    """The programs of all tests would be millions of objects, and a full garbage collection would take seconds."""
    global _forgotten
    yield
    if jaxtorch.compile_count() - _forgotten > _MOST_PROGRAMS:
        program_cache.clear()
        jax.clear_caches()
        _forgotten = jaxtorch.compile_count()


@pytest.fixture(autouse=True)
def _immediate(request: pytest.FixtureRequest) -> Iterator[None]:
    if modes.current != "immediate" and any(name in request.node.nodeid for name in IMMEDIATE):
        with modes.immediate():
            yield
    else:
        yield


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Dynamo remembers nothing, before and after; random numbers restart."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
