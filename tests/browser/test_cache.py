"""`%jax cache`, clicked through."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Locator, expect

from .lab import Lab
from .training import MARKUP, Training

OUTER = ":not(tr.detail *)"  # not of the tables that open below a row
NAMES = f"tbody td.name .mono{OUTER}"


def of(training: Training) -> Locator:
    """The view as it opens, whatever other tests did to it."""
    view = training.of("cache")
    view.get_by_role("tab", name="By function").click()
    return view


def names(view: Locator) -> list[str]:
    return view.locator(NAMES).all_inner_texts()


def column(view: Locator, title: str) -> list[str]:
    heads = [text.strip(" ▾▴") for text in view.locator(f"thead th{OUTER}").all_inner_texts()]
    cells = f"tbody tr:not(.detail) > td:nth-child({heads.index(title) + 1}){OUTER}"
    return view.locator(cells).all_inner_texts()


def test_each_function_is_a_row_and_eager_operators_are_one(training: Training) -> None:
    view = of(training)
    kinds = dict(zip(names(view), column(view, "kind"), strict=True))
    assert kinds["train"] == "jit"
    assert kinds[MARKUP] == "pure"
    assert list(kinds.values()).count("eager") == 1
    calls = dict(zip(names(view), column(view, "calls"), strict=True))
    assert int(calls["train"]) >= 4


def test_a_press_on_a_head_sorts_and_another_turns_the_order(training: Training) -> None:
    view = of(training)
    head = view.get_by_role("columnheader", name="name")
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    up = names(view)
    head.get_by_role("button").press("Enter")
    expect(head).to_have_attribute("aria-sort", "descending")
    assert names(view) == up[::-1]
    assert len(set(up)) == len(up) >= 3


def test_a_filter_leaves_the_rows_that_have_its_words(training: Training) -> None:
    view = of(training)
    box = view.get_by_role("searchbox")
    box.fill("jit train")
    rows, train = view.locator(NAMES), view.locator(NAMES).get_by_text("train", exact=True)
    expect(rows).to_have_text(["train"])
    box.fill("-train -eager")
    expect(train).to_have_count(0)
    expect(rows.first).to_be_visible()
    box.press("Escape")
    expect(train).to_have_count(1)
    assert training.page.locator(".jp-mod-editMode").count() == 0  # JupyterLab took no key of it


def test_what_was_traced_again_says_why_and_what_to_do(training: Training) -> None:
    view = of(training)
    button = view.get_by_role("button", name="Details of train")
    expect(button).to_have_attribute("aria-expanded", "true")  # nobody pressed it
    other = view.get_by_role("button", name=f"Details of {MARKUP}")
    expect(other).to_have_attribute("aria-expanded", "false")
    said = view.locator("tr.detail .notice").first
    expect(said).to_contain_text("512")
    expect(said).to_contain_text("256")
    inner = view.get_by_role("table", name="Programs of train")
    inputs = inner.locator("tbody td:nth-child(2)").all_inner_texts()
    assert {i.split(",")[0] for i in inputs} == {"float32[512", "float32[256"}
    button.press("Enter")
    expect(inner).to_have_count(0)
    button.press("Enter")
    expect(inner).to_have_count(1)


def test_names_that_are_markup_are_text(training: Training) -> None:
    view = of(training)
    expect(view.get_by_text(MARKUP, exact=True)).to_be_visible()
    assert training.page.locator("img[src='x']").count() == 0
    assert view.locator("img").count() == 0


def test_a_program_that_is_compiled_later_appears_and_can_be_kept_and_cleared(
    training: Training,
) -> None:
    view = of(training)
    assert "even" not in names(view)
    training.run(training.number("later"))
    view = of(training)
    button = view.get_by_role("button", name="Details of even")
    button.click()
    inner = view.get_by_role("table", name="Programs of even")
    inner.get_by_role("button", name="keep: ").first.click()
    expect(inner.get_by_text("kept").first).to_be_visible()
    view.get_by_role("button", name="clear: even").click()
    expect(button).to_have_count(0)
    assert "train" in names(view)


def test_the_totals_name_the_cell(training: Training) -> None:
    view = of(training)
    view.get_by_role("tab", name="By cell").click()
    expect(view.get_by_role("table")).to_contain_text(training.prompt("train"))
    view.get_by_role("tab", name="By cell").press("ArrowLeft")
    expect(view.get_by_role("tab", name="By function")).to_be_focused()
    expect(view.locator(NAMES).get_by_text("train", exact=True)).to_be_visible()


CLEARED = """\
%load_ext jaxtorch
import jaxtorch, torch
@jaxtorch.pure
def twice(x):
    return x * 2
@jaxtorch.pure
def thrice(x):
    return x * 3
x = torch.arange(3.0, device="jax")
def run():
    twice(x), thrice(x), x + 1
run()
"""
KNOWN = "print(*sorted(f.name for f in jaxtorch.insight.functions()), sep=', ', end='.')"
ANEW = "before = jaxtorch.compile_count(); run(); print(jaxtorch.compile_count() - before)"


def test_what_is_cleared_in_the_page_is_forgotten_by_the_engine(lab: Callable[..., Lab]) -> None:
    notebook = lab(CLEARED, "%jax cache", KNOWN, ANEW)
    notebook.run(0)
    notebook.run(1)
    view = notebook.view(1)
    rows = view.locator(NAMES)
    expect(rows).to_have_text(["eager operators", "twice", "thrice"])
    view.get_by_role("button", name="Details of twice").click()
    view.get_by_role("button", name="clear: twice").click()
    expect(rows).to_have_text(["eager operators", "thrice"])
    expect(notebook.run(2)).to_contain_text("eager operators, thrice.")
    expect(notebook.run(3)).to_contain_text("1")  # `twice` alone
    view.get_by_role("button", name="Details of twice").click()  # it was open, and is again
    expect(rows).to_have_text(["eager operators", "thrice", "twice"])

    view.get_by_role("button", name="clear all").click()
    expect(view.get_by_text("Nothing has been compiled")).to_be_visible()
    expect(view.locator(".title")).to_have_text("0 programs")
    expect(view.get_by_text("retraced")).to_have_count(0)
    for tab in ("By cell", "By line"):
        view.get_by_role("tab", name=tab).click()
        expect(view.get_by_text("Nothing yet.")).to_be_visible()
    view.get_by_role("tab", name="By function").click()
    expect(notebook.run(2)).to_have_text(".")
    expect(notebook.run(3)).to_contain_text("3")  # all of them: two programs and an operator
    expect(rows).to_have_text(["twice", "thrice", "eager operators"])
