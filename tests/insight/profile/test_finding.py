"""The sentence that a profile opens with, the categories of its events, the names of its lanes."""

from __future__ import annotations

import re
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import torch

from jaxtorch.insight.profile import profile
from jaxtorch.insight.profile.categories import CATEGORIES, categories
from jaxtorch.insight.profile.finding import extent, finding
from jaxtorch.insight.profile.hosts import union
from jaxtorch.insight.profile.lanes import lanes_of, plain_name

from .code import Ran, ran

# Line 2 has three products of matrices, and its backward has one.
CODE = """
def work():
    y = x @ x @ x @ w
    loss = (y * 2).sum()
    loss.backward()
    nap(pause)
    return loss.item()
"""


def ran_with(folder: Path, pause: float, size: int = 512) -> Ran:
    names = {
        "x": torch.randn(size, size, device="jax"),
        "w": torch.randn(size, size, device="jax", requires_grad=True),
        "nap": time.sleep,
        "pause": pause,
    }
    return ran(folder, CODE, names, warmup=2)


def test_it_names_the_slowest_line_and_how_long_the_device_idles(tmp_path: Path) -> None:
    found = ran_with(tmp_path, 0.5)
    file = str(tmp_path / "code.py")
    sentence = finding(found.profile, file)
    match = re.fullmatch(
        r"(\d+)% of the device's time is `y = x @ x @ x @ w`, line 2; the device idles (\d+)%, "
        r"and this thread runs Python (\d+)%\.",
        sentence,
    )
    assert match, sentence
    slowest, idle, python = map(int, match.groups())
    assert slowest == round(100 * found.by_line[2].total / found.profile.device)
    assert idle == round(100 * found.profile.idle / found.profile.wall)
    assert python == round(100 * found.profile.host.python / found.profile.wall)
    assert "code.py, line 2" in finding(found.profile)  # of another file than the cell's
    assert extent(found.profile) == ""


def test_what_the_backward_thread_does_is_of_the_thread_that_waits_for_it() -> None:
    """Only a backward pass runs here: each program is traced, compiled and launched by torch's thread."""
    x = torch.randn(37, 41, device="jax", requires_grad=True)
    loss = torch.special.erfcx(x).mul(x).sum()
    phases: list[tuple[float, float]] = []

    def listener(event: str, start_time: float, end_time: float, **_: object) -> None:
        if event.startswith("/jax/core/compile/") and event.endswith("_duration"):
            phases.append((start_time, end_time))

    jax.monitoring.register_event_time_span_listener(listener)
    try:
        profiled = profile(lambda: loss.backward(retain_graph=True))
    finally:
        jax.monitoring.unregister_event_time_span_listener(listener)
    compiled = union(np.array(phases) * 1e9)
    host = profiled.host
    assert host.compile == pytest.approx((compiled[:, 1] - compiled[:, 0]).sum(), rel=0.1)
    assert host.dispatch > 0
    recording = profiled.recording
    names = np.array(CATEGORIES)[categories(recording, profiled.attribution)]
    lanes = np.array([lane.backward for lane in recording.events.lanes])
    assert {"compiling", "launching"} <= set(names[lanes[recording.events.lane]])


def test_nothing_on_the_device() -> None:
    assert finding(profile(lambda: sum(range(10)))) == "Nothing ran on the device."


def test_backticks_of_a_line_do_not_end_its_code(tmp_path: Path) -> None:
    found = ran(
        tmp_path, "def work():\n    return x.exp()  # `x`\n", {"x": torch.ones(9, device="jax")}
    )
    assert "`return x.exp()  # 'x'`" in finding(found.profile)


def test_each_event_has_the_category_of_what_it_does(tmp_path: Path) -> None:
    profiled = ran_with(tmp_path, 0).profile
    recording = profiled.recording
    of = np.array(CATEGORIES)[categories(recording, profiled.attribution)]
    events = recording.events
    assert set(of[events.on_device]) == {"forward", "backward"}
    self_time = events.self_time[events.on_device]
    backward = self_time[of[events.on_device] == "backward"].sum()
    assert backward == pytest.approx(sum(row.time.backward for row in profiled.lines))
    names = np.array(events.names)[events.name]
    host = ~events.on_device
    assert set(of[host & (names == "jaxtorch: wait for a value")]) == {"waiting"}
    assert set(of[host & (names == "jaxtorch: transfer to the host")]) == {"transfers"}
    assert "launching" in of[host]
    assert "forward" not in of[host]


def test_lanes_have_plain_names() -> None:
    lanes = profile(lambda: torch.ones(64, 64, device="jax") + 1).recording.events.lanes
    assert "this thread" in {lane.name for lane in lanes}
    assert not [lane for lane in lanes if re.search("tf_|XLA|PjRt|/", lane.name)]
    assert len({lane.name for lane in lanes}) == len(lanes)


def test_names_of_streams_and_unknown_threads() -> None:
    keys = [
        ("/device:GPU:0", "Stream #13(Compute)", 1),
        ("/device:GPU:1", "Stream #13(Compute)", 1),
        ("/host:CPU", "python", 1),
        ("/host:CPU", "python", 2),
        ("/host:CPU", "mine/12", 1),
    ]
    assert [lane.name for lane in lanes_of(keys, [True] * 2 + [False] * 3, 3)] == [
        "GPU 0, stream 13 (Compute)",
        "GPU 1, stream 13 (Compute)",
        "other thread",
        "this thread",
        "mine",
    ]
    assert plain_name("/host:CPU", "pt_autograd_0") == "backward thread"
