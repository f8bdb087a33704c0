"""The variables that launchers set, and the errors for missing ones."""

from __future__ import annotations

import pytest

from jaxtorch.parallel.launchers import Rendezvous, completed

TORCHRUN = {
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
}


@pytest.mark.parametrize(
    ("given", "changes", "expected"),
    [
        (Rendezvous(), {}, Rendezvous("node0:29500", 8, 3, [1])),
        (Rendezvous(process_id=0), {}, Rendezvous("node0:29500", 8, 0, [1])),
        (Rendezvous("other:1", 2, 1), {}, Rendezvous("other:1", 2, 1)),
        (Rendezvous("other:1"), {}, Rendezvous("other:1", 8, 3, [1])),
        (
            Rendezvous("other:1"),
            {"MASTER_ADDR": "", "MASTER_PORT": ""},
            Rendezvous("other:1", 8, 3, [1]),
        ),
        (Rendezvous(), {"LOCAL_WORLD_SIZE": "1"}, Rendezvous("node0:29500", 8, 3)),
        (Rendezvous(), {"CUDA_VISIBLE_DEVICES": "5"}, Rendezvous("node0:29500", 8, 3)),
        (Rendezvous(), {"CUDA_VISIBLE_DEVICES": "4,5"}, Rendezvous("node0:29500", 8, 3, [1])),
        (Rendezvous(), dict.fromkeys(TORCHRUN, ""), Rendezvous()),  # left to JAX
        (Rendezvous(local_device_ids=[0]), {}, Rendezvous("node0:29500", 8, 3, [0])),
    ],
)
def test_what_is_given_precedes_what_torchrun_says(
    given: Rendezvous, changes: dict[str, str], expected: Rendezvous
) -> None:
    assert completed(given, 1, {**TORCHRUN, **changes}) == expected


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"])
def test_a_missing_variable_is_named(missing: str) -> None:
    environ = {name: value for name, value in TORCHRUN.items() if name != missing}
    with pytest.raises(RuntimeError, match=f"but not {missing}: set all four"):
        completed(Rendezvous(), 1, environ)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "8"}, "process_id is 8, but with num_processes=8"),
        ({"RANK": "-1"}, "process_id is -1"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE must be an integer, but it is 'many'"),
    ],
)
def test_a_wrong_variable_is_named(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        completed(Rendezvous(), 1, {**TORCHRUN, **changes})
