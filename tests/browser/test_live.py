"""A live view in JupyterLab: in place of its HTML, following the session, staying when its kernel goes."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Locator, expect

from .lab import Lab, Notebook7

VIEW = """
from dataclasses import dataclass
from typing import Annotated
from jaxtorch.widgets.page import Column, Page, Row, Table, columns
from jaxtorch.widgets.view import PageView
@dataclass(frozen=True)
class Thing(Row):
    name: Annotated[str, Column("Name")]
    size: Annotated[int, Column("Size", "bytes")]
rows = [dict(id=i, name=n, size=s) for i, n, s in [
    (1, "conv", 3000), (2, "<img src=x onerror=alert(1)>", 20), (3, "matmul", 400)]]
class Rows(PageView):
    def revision(self): return sum(r["size"] for r in rows)
    def page(self):
        things = [Thing(**r) for r in rows]
        return Page("Things", sections=(Table("things", columns(Thing, things), things),), filter="")
"""


def names(view: Locator) -> Locator:
    return view.locator("tbody td.name")


def test_a_view_is_live_where_its_html_stands(lab: Callable[..., Lab]) -> None:
    notebook = lab(VIEW, "Rows()")
    notebook.run(0)
    notebook.run(1)
    view = notebook.view(1)
    expect(names(view)).to_have_text(["conv", "<img src=x onerror=alert(1)>", "matmul"])
    view.get_by_role("button", name="Size").click()
    expect(names(view)).to_have_text(["conv", "matmul", "<img src=x onerror=alert(1)>"])
    view.get_by_role("searchbox").fill("MAT")
    expect(names(view)).to_have_text(["matmul"])


LOOP = """
import pathlib, time
for step in range(40):
    rows[0]["size"] = 5000 + step
    rows.append(dict(id=10 + step, name=f"step{step}", size=step))
    time.sleep(0.05)
while not pathlib.Path("seen").exists():
    time.sleep(0.05)
"""


def test_it_follows_a_running_cell_and_is_right_at_its_end(lab: Callable[..., Lab]) -> None:
    notebook = lab(VIEW, "shown = Rows(); shown", "shown", LOOP)
    (notebook.file.parent / "seen").unlink(missing_ok=True)
    for cell in range(3):
        notebook.run(cell)
    views = [notebook.view(1), notebook.view(2)]
    for view in views:
        expect(names(view)).to_have_count(3)
    notebook.run(3, wait=False)
    for view in views:
        expect(view.get_by_text("step7", exact=True)).to_be_visible()
    assert notebook.cell(3).locator(".jp-InputPrompt").inner_text() == "[*]:"
    (notebook.file.parent / "seen").touch()
    notebook.done(3)
    for view in views:
        expect(view.locator("tbody tr")).to_have_count(43)


# How many threads of views there are, once that is what is wanted or a minute is over.
THREADS = """
import threading, time
def threads(wanted):
    for _ in range(1200):
        found = sum(t.name == "jaxtorch views" for t in threading.enumerate())
        if found == wanted:
            break
        time.sleep(0.05)
    return found
"""


def test_nothing_runs_in_the_kernel_while_nobody_looks(lab: Callable[..., Lab]) -> None:
    notebook = lab(VIEW + THREADS, "Rows()", "print(threads(1))", "print(threads(0))")
    notebook.run(0)
    notebook.run(1)
    notebook.view(1)
    expect(notebook.run(2)).to_have_text("1")
    notebook.command("notebook:clear-all-cell-outputs")
    expect(notebook.page.locator(".view")).to_have_count(0)
    expect(notebook.run(3)).to_have_text("0")


def test_a_page_loaded_again_is_live_again(lab: Callable[..., Lab]) -> None:
    notebook = lab(VIEW, "Rows()", "rows.append(dict(id=4, name='later', size=1))")
    notebook.run(0)
    notebook.run(1)
    notebook.view(1)
    notebook.save()
    notebook.open()
    view = notebook.view(1)
    expect(names(view)).to_have_count(3)
    notebook.run(2)
    expect(view.get_by_text("later")).to_be_visible()


def test_a_restarted_kernel_leaves_what_was_shown_and_says_so(lab: Callable[..., Lab]) -> None:
    notebook = lab(VIEW, "Rows()")
    notebook.run(0)
    notebook.run(1)
    view = notebook.view(1)
    notebook.restart()
    expect(view.get_by_role("status")).to_contain_text("kernel is gone")
    view.get_by_role("button", name="Size").click()  # what needs no kernel still works
    expect(names(view).first).to_have_text("conv")
    notebook.page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
    )
    notebook.run(0)
    notebook.run(1)
    expect(notebook.view(1)).to_have_attribute("data-life", "live")


def test_a_saved_notebook_has_the_html_alone_and_shows_it_without_a_kernel(
    lab: Callable[..., Lab],
) -> None:
    notebook = lab(VIEW, "Rows()")
    notebook.run(0)
    notebook.run(1)
    notebook.view(1)
    saved = notebook.save()
    [output] = saved["cells"][1]["outputs"]
    assert set(output["data"]) == {"text/plain", "text/html"}
    assert "widgets" not in saved["metadata"]
    notebook.shut_down()
    notebook.open()
    expect(notebook.outputs(1).locator("td").first).to_have_text("conv")
    expect(notebook.outputs(1).locator(".view")).to_have_count(0)
    expect(notebook.page.get_by_text("Loading widget")).to_have_count(0)


def test_what_goes_wrong_in_the_kernel_is_said_in_the_view(lab: Callable[..., Lab]) -> None:
    notebook = lab(
        VIEW, "Rows()", "rows.append({'size': 1, 'id': 5, 'name': object})", "rows[:] = [{}]"
    )
    for cell in range(3):
        notebook.run(cell)
    view = notebook.view(1)
    expect(view.get_by_text("<class 'object'>")).to_be_visible()
    notebook.run(3)
    expect(view.get_by_role("status")).to_have_text("KeyError: 'size'")
    expect(names(view)).to_have_count(4)


def test_keys_that_are_typed_into_a_view_are_no_commands_of_the_notebook(
    lab: Callable[..., Lab],
) -> None:
    notebook = lab(VIEW, "Rows()")
    notebook.run(0)
    notebook.run(1)
    box = notebook.view(1).get_by_role("searchbox")
    box.click()
    notebook.page.keyboard.type("ddab")  # in JupyterLab: delete a cell, add one above, one below
    expect(box).to_have_value("ddab")
    expect(notebook.page.locator(".jp-Notebook .jp-Cell")).to_have_count(2)


def test_in_notebook_7_it_is_the_same(lab: Callable[..., Lab]) -> None:
    notebook = lab(VIEW, "Rows()", LOOP, kind=Notebook7)
    (notebook.file.parent / "seen").touch()
    notebook.run(0)
    notebook.run(1)
    view = notebook.view(1)
    view.get_by_role("button", name="Size").click()
    expect(names(view).first).to_have_text("conv")
    notebook.run(2)
    expect(names(view)).to_have_count(43)


LONG = r"""
from jaxtorch.widgets.hlo_data import HloData, SourceLine, SourceLines, SourceText, StageAnswer
from jaxtorch.widgets.page import Page
from jaxtorch.widgets.protocol import plain
from jaxtorch.widgets.view import View
class Long(View):
    kind = "hlo"
    places = [SourceText("f", "f", None, 1, ["first", "second"])], [SourceLine(0, 1), SourceLine(0, 2)]
    def text(self): return "long"
    def html(self): return "<p>long</p>"
    def data(self): return plain(HloData(*self.places, Page("long"), "long", [], ["hlo"], "hlo", -1, ""))
    def answer(self, ask, arguments):
        lines = [f"  %add.{i} = f32[8]{{0}} add(%p, %add.{i - 1}), metadata={{op_name=a}}" for i in range(50_000)]
        links = [int(i == 40_000) for i in range(50_000)]
        return StageAnswer(*self.places, "hlo", "HLO", "\n".join(lines), [[0], [1]], links, [])
Long()
"""


def test_fifty_thousand_lines_are_drawn_only_where_they_are_seen(lab: Callable[..., Lab]) -> None:
    notebook = lab(LONG)
    notebook.run(0)
    view = notebook.view(0)
    program = view.locator(".side").nth(1)
    expect(program.get_by_text("50,000 lines")).to_be_visible()
    expect(program.locator(".cm-line").first).to_be_visible()
    assert program.locator(".cm-line").count() < 500
    view.locator(".side").nth(0).locator(".cm-line", has_text="second").click()
    expect(program.locator(".cm-linked")).to_contain_text(["%add.40000 = "])
    expect(program.get_by_role("status")).to_have_text("50,000 lines, 1 linked")
