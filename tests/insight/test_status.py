"""The state of the device as plain data."""

from __future__ import annotations

import dataclasses
import gc
import json

import torch

import jaxtorch
from jaxtorch.insight.status import read_status


def test_memory_and_programs_are_counted() -> None:
    gc.collect()  # tensors of earlier tests, in cycles
    before = read_status()
    kept = torch.ones(1000, 7, device="jax").sigmoid()
    after = read_status()
    assert (
        sum(d.allocated for d in after.devices) - sum(d.allocated for d in before.devices)
        == kept.nbytes
    )
    assert after.peak >= kept.nbytes
    assert after.compiled >= before.compiled


def test_what_is_in_force_here() -> None:
    with jaxtorch.config(fallback="silent"), torch.device("jax"):
        status = read_status()
    assert status.options["fallback"] == "silent"
    assert status.default_device == "jax:0"
    assert read_status().options["fallback"] == "warn"


def test_it_is_plain_data() -> None:
    assert json.loads(json.dumps(dataclasses.asdict(read_status())))["platform"]
