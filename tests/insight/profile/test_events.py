"""Events as arrays: their nesting and their self times."""

from __future__ import annotations

import numpy as np

from jaxtorch.insight.profile.events import EventModule, Events, Lane, make_events
from jaxtorch.insight.profile.hosts import covered_time, union

LANES = (Lane("python", False), Lane("pool", True))
HOST, DEVICE = -1, 0


def events(*rows: tuple[int, int, int, int, int, int]) -> Events:
    """Rows of (start, duration, lane, name, program, run)."""
    return make_events(rows, LANES, ("loop", "body", "launch"), (EventModule(1, "jit_f"),))


def test_a_loops_own_time_is_what_its_body_leaves() -> None:
    result = events(
        (100, 50, 1, 0, DEVICE, 7), (105, 20, 1, 1, DEVICE, 7), (125, 20, 1, 1, DEVICE, 7)
    )
    assert result.self_time.tolist() == [10, 20, 20]
    assert result.depth.tolist() == [0, 1, 1]
    assert result.self_time.sum() == 50


def test_rows_may_come_in_any_order() -> None:
    result = events((125, 20, 1, 1, DEVICE, 7), (100, 50, 1, 0, DEVICE, 7))
    assert result.start.tolist() == [100, 125]
    assert result.self_time.tolist() == [30, 20]


def test_lanes_do_not_hold_each_other() -> None:
    result = events((0, 100, 0, 2, HOST, 0), (10, 20, 1, 1, DEVICE, 1))
    assert result.self_time.tolist() == [100, 20]
    assert result.depth.tolist() == [0, 0]


def test_a_program_in_the_hosts_thread_takes_nothing_from_the_launch_around_it() -> None:
    result = events((0, 100, 0, 2, HOST, 0), (10, 20, 0, 1, DEVICE, 1))
    assert result.self_time.tolist() == [100, 20]
    assert result.select(result.on_device).start.tolist() == [10]


def test_one_that_begins_where_another_ends_is_not_within() -> None:
    result = events((0, 10, 1, 1, DEVICE, 1), (10, 10, 1, 1, DEVICE, 2))
    assert result.self_time.tolist() == [10, 10]
    assert result.depth.tolist() == [0, 0]


def test_one_that_seems_to_end_a_little_late_is_within() -> None:
    result = events((0, 100, 1, 0, DEVICE, 1), (60, 42, 1, 1, DEVICE, 1))
    assert result.self_time.tolist() == [60, 42]
    assert result.depth.tolist() == [0, 1]


def test_no_events() -> None:
    result = make_events([], (), (), ())
    assert len(result) == 0
    assert result.on_device.tolist() == []


def test_spans_are_cut_to_their_bounds() -> None:
    covered = union(np.array([(0, 5), (3, 12)]))
    assert covered_time(covered, np.array([(2, 4), (10, 20), (13, 15)])).tolist() == [2, 2, 0]
