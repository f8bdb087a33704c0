"""`%jax memory`, clicked through."""

from __future__ import annotations

from playwright.sync_api import expect

from .training import Training


def test_the_arrays_are_there_by_name_and_say_what_keeps_them(training: Training) -> None:
    view = training.of("memory")
    view.get_by_role("tab", name="Arrays").click()
    view.get_by_role("searchbox").fill("x float32 [512, 64]")
    button = view.get_by_role("button", name="Details of x", exact=True)
    button.click()
    view.get_by_role("button", name="what keeps it alive: x").click()
    expect(view.locator("tr.detail .notice").first).to_contain_text("x")
    button.click()
    view.get_by_role("searchbox").press("Escape")


def test_lines_and_cells_have_their_sums(training: Training) -> None:
    view = training.of("memory")
    view.get_by_role("searchbox").press("Escape")
    view.get_by_role("tab", name="By line").click()
    expect(view.get_by_role("table")).to_contain_text(f"{training.prompt('set_up')}:")
    view.get_by_role("tab", name="By cell").click()
    expect(view.get_by_role("columnheader", name="peak")).to_be_visible()
    view.get_by_role("tab", name="Arrays").click()
