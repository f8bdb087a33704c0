"""A live view in JupyterLab: in place of its HTML, following the session, staying when its kernel goes."""

from __future__ import annotations

from collections.abc import Callable

from .lab import Lab

VIEW = """
from html import escape
from jaxtorch.widgets.view import View
rows = [dict(id=i, name=n, size=s) for i, n, s in [
    (1, "conv", 3000), (2, "<img src=x onerror=alert(1)>", 20), (3, "matmul", 400)]]
class Rows(View):
    kind = "table"
    def text(self): return "rows"
    def html(self): return "<table>" + "".join(f"<tr><td>{escape(r['name'])}" for r in rows) + "</table>"
    def revision(self): return sum(r["size"] for r in rows)
    def data(self):
        columns = [dict(key="name", label="Name"), dict(key="size", label="Size", kind="bytes")]
        return dict(title="Things", columns=columns, rows=rows)
"""


def names(view) -> list[str]:  # type: ignore[no-untyped-def]
    return view.locator("tbody td.name").all_inner_texts()


def test_a_view_is_live_where_its_html_stands(lab: Callable[..., Lab]) -> None:
    notebook = lab(VIEW, "Rows()")
    notebook.run(0)
    notebook.run(1)
    view = notebook.view(1)
    assert names(view) == ["conv", "<img src=x onerror=alert(1)>", "matmul"]
    view.get_by_role("button", name="Size").click()
    assert names(view) == ["conv", "matmul", "<img src=x onerror=alert(1)>"]
    view.get_by_role("searchbox").fill("MAT")
    assert names(view) == ["matmul"]
