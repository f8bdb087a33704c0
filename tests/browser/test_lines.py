"""`%%jax lines`, at the widths of a notebook cell."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from .training import Training


@pytest.mark.parametrize("width", [760, 900, 1280, 1800])
def test_the_code_comes_first_and_keeps_half_the_width(training: Training, width: int) -> None:
    training.page.set_viewport_size({"width": width, "height": 1000})
    try:
        view = training.of("lines")
        table = view.locator("table.annotated").first
        heads = [head.inner_text() for head in table.locator("thead th:visible").all()]
        assert heads[:3] == ["line", "code", "device"]
        whole, code = table.bounding_box(), table.locator("td.code-cell").first.bounding_box()
        scroll = view.locator(".scroll").first
        assert whole is not None
        assert code is not None
        assert code["width"] >= whole["width"] / 2 - 12
        assert scroll.evaluate("e => e.scrollWidth <= e.clientWidth"), heads  # none is cut off
        assert len(heads) >= {760: 3, 900: 4, 1280: 6, 1800: 7}[width], heads
    finally:
        training.page.set_viewport_size({"width": 1280, "height": 1000})


def test_only_lines_with_time_unless_asked(training: Training) -> None:
    view = training.of("lines")
    rows = view.locator("table.annotated tr[data-line]")
    assert "b = a @ a @ a" in rows.first.inner_text()
    expect(view.locator("tr.folded")).to_have_count(1)
    expect(rows.first.locator(".code-keyword").first).to_be_visible()  # its operators
    button = view.get_by_role("button", name="all 5 lines")
    button.click()
    expect(rows).to_have_count(5)
    expect(rows.first).to_contain_text("%%jax lines")
    button.click()
    expect(view.locator("tr.folded")).to_have_count(1)


def test_the_bars_are_as_long_as_the_shares(training: Training) -> None:
    view = training.of("lines")
    rows = view.locator("table.annotated tr:has(.track .share:not([hidden]))")
    assert rows.count() > 1
    for row in rows.all():
        track, bar = (
            row.locator(part).evaluate("e => e.getBoundingClientRect().width")
            for part in (".track", ".track .share")
        )
        share = float(row.inner_text().split("%")[0].split()[-1]) / 100
        # Of the whole, not of the longest: the bars of two sources compare, as in the text form.
        assert bar == pytest.approx(max(1, share * track), abs=0.1)
