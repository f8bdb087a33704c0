"""`%jax devices`: an array sharded over eight devices, clicked through, and resharded while it is shown."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Locator, expect

from .lab import Lab

SET_UP = """\
%env XLA_FLAGS=--xla_force_host_platform_device_count=8
%load_ext jaxtorch
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2, 4), ("data", "model"))
weight = jax.device_put(jnp.ones((16, 64)), NamedSharding(mesh, P("data", "model")))
"""
CUT_ANEW = 'weight = jax.device_put(weight, NamedSharding(mesh, P(None, "model")))'


def labels(view: Locator) -> Locator:
    return view.get_by_role("table", name="Devices of each part").get_by_role("button")


def test_an_arrays_parts_and_its_devices_are_linked_and_follow_it(lab: Callable[..., Lab]) -> None:
    notebook = lab(SET_UP, "%jax devices weight", CUT_ANEW, "del weight")
    notebook.run(0)
    notebook.run(1)
    view = notebook.view(1)
    expect(labels(view)).to_have_text(["0", "1", "2", "3", "4", "5", "6", "7"])
    heads = view.locator(".parts th")
    expect(heads).to_have_text(["0:16", "16:32", "32:48", "48:64", "0:8", "8:16"])
    devices = view.get_by_role("table", name="Devices", exact=True)
    selected = devices.locator("tr[aria-selected='true'] td.name")
    labels(view).nth(5).click()
    expect(selected).to_have_text(["cpu:5"])
    devices.get_by_role("button", name="cpu:2").click()
    expect(view.locator(".parts button[aria-pressed='true']")).to_have_text(["2"])
    expect(devices.locator("tbody tr").first).to_contain_text(
        "512 B"
    )  # an eighth of 16 × 64 floats

    notebook.run(2)
    expect(labels(view)).to_have_text(["0, 4", "1, 5", "2, 6", "3, 7"])
    labels(view).nth(1).click()
    expect(selected).to_have_text(["cpu:1", "cpu:5"])
    labels(view).nth(1).press("Enter")
    expect(selected).to_have_count(0)

    notebook.run(3)
    expect(view.get_by_role("status")).to_contain_text("'weight' is not defined")
    expect(labels(view)).to_have_count(4)


def test_without_an_array_it_is_the_devices(lab: Callable[..., Lab]) -> None:
    notebook = lab(SET_UP, "%jax devices")
    notebook.run(0)
    notebook.run(1)
    view = notebook.view(1)
    expect(view.locator(".title")).to_have_text("8 devices")
    expect(view.locator("tbody tr")).to_have_count(8)
