"""The kernel's side of a live view, with a page that is a list of messages."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jaxtorch.widgets import hosts, live
from jaxtorch.widgets.view import View


class Counted(View):
    """A view of one number and of rows."""

    kind = "page"

    def __init__(self) -> None:
        self.n = 0
        self.looked = 0
        self.fails = 0

    def text(self) -> str:
        return "counted"

    def html(self) -> str:
        return "<p>counted</p>"

    def revision(self) -> object:
        return self.n

    def data(self) -> dict[str, Any]:
        self.looked += 1
        if self.fails:
            self.fails -= 1
            raise RuntimeError("dictionary changed size during iteration")
        if self.n < 0:
            raise ValueError("no number is below zero")
        return {"n": self.n, "rows": [{"id": i, "n": i} for i in range(self.n)]}

    def answer(self, ask: str, arguments: dict[str, Any]) -> Any:
        if ask == "add":
            self.n += arguments["by"]
            return self.n
        return super().answer(ask, arguments)


class Widget:
    """A widget whose page keeps what it was sent."""

    view_id = "p"

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.buffers: list[Any] = []
        self.closed = False

    def send(self, content: dict[str, Any], buffers: Any = None) -> None:
        self.sent.append(content)
        self.buffers.append(buffers)

    def close(self) -> None:
        self.closed = True


class Page:
    """A connection, and what its page says."""

    def __init__(self, view: View):
        self.widget = Widget()
        self.connection = live.Connection(view, self.widget)

    def say(self, type: str, **fields: Any) -> None:
        self.connection.receive(self.widget, {"v": 1, "type": type, **fields}, [])

    def took(self, *types: str) -> list[dict[str, Any]]:
        """What came since the last time, which must be of these types."""
        sent, self.widget.sent = self.widget.sent, []
        assert [m["type"] for m in sent] == list(types)
        return sent


@pytest.fixture
def view() -> Iterator[Counted]:
    yield Counted()
    live.end()
    deadline = time.monotonic() + 10
    while any(t.name == "jaxtorch views" for t in threading.enumerate()):
        assert time.monotonic() < deadline, "the thread outlives its views"
        time.sleep(0.01)


@pytest.fixture
def page(view: Counted) -> Iterator[Page]:
    page = Page(view)
    yield page
    page.connection.end()


def test_the_whole_state_then_patches(view: Counted, page: Page) -> None:
    page.say("open")
    [state] = page.took("state")
    assert (state["kind"], state["data"]) == ("page", {"n": 0, "rows": []})
    view.n = 2
    page.connection.look()
    patch = page.took("patch")[0]
    assert patch["revision"] == state["revision"] + 1
    assert patch["changes"]["n"] == {"$value": 2}


def test_nothing_is_asked_of_a_view_that_did_not_change(view: Counted, page: Page) -> None:
    page.say("open")
    looked = view.looked
    for _ in range(5):
        page.connection.look()
    assert view.looked == looked
    page.took("state")


def test_the_thread_sends_while_somebody_looks_and_no_longer(view: Counted, page: Page) -> None:
    page.say("open")
    view.n = 1
    deadline = time.monotonic() + 10
    while len(page.widget.sent) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    page.took("state", "patch")
    page.say("close")
    thread = live._ticker._thread
    if thread is not None:
        thread.join(10)
    view.n = 2
    assert live._ticker._thread is None
    page.took()


def test_a_burst_of_changes_is_few_messages(view: Counted, page: Page) -> None:
    page.say("open")
    began = time.monotonic()
    while time.monotonic() - began < 0.5:
        view.n = min(view.n + 1, 1000)
        time.sleep(0.001)
    took = time.monotonic() - began
    page.say("close")
    assert len(page.widget.sent) - 1 <= took / live._PERIOD + 2


def test_answers_carry_what_they_changed(view: Counted, page: Page) -> None:
    page.say("open")
    page.say("ask", id=7, ask="add", arguments={"by": 3})
    _, answer, patch = page.took("state", "answer", "patch")
    assert (answer["id"], answer["value"]) == (7, 3)
    assert patch["changes"]["n"] == {"$value": 3}


@pytest.mark.parametrize("ask", [{"ask": "add", "arguments": {}}, {"ask": "fly"}, {}])
def test_a_question_that_fails_is_an_error_to_who_asked(page: Page, ask: dict) -> None:
    page.say("ask", id=1, **ask)
    [error] = page.took("error")
    assert error["id"] == 1
    assert "Error: " in error["message"]


@pytest.mark.parametrize(
    "message", [None, 3, {}, {"v": 2, "type": "open"}, {"v": 1, "type": "fly"}]
)
def test_messages_of_another_page_do_no_harm(page: Page, message: Any) -> None:
    page.connection.receive(page.widget, message, [])
    assert all(m["type"] == "error" for m in page.widget.sent)


def test_a_view_that_fails_says_so_and_recovers(view: Counted, page: Page) -> None:
    page.say("open")
    view.n = -1
    for _ in range(3):
        page.connection.look()
    assert page.took("state", "error")[1]["message"] == "ValueError: no number is below zero"
    view.n = 1
    page.connection.look()
    page.took("patch")


def test_what_failed_is_tried_again_though_nothing_changed(view: Counted, page: Page) -> None:
    """The session goes on in another thread: a dictionary that grew meanwhile must not stop the view."""
    page.say("open")
    view.n, view.fails = 1, 1
    page.connection.look()
    page.took("state", "error")
    page.connection.look()
    assert page.took("patch")[0]["changes"]["n"] == {"$value": 1}
    page.connection.look()
    page.took()


def test_the_drawing_code_is_one_binary_message(page: Page) -> None:
    page.say("bundle")
    [answer] = page.took("bundle")
    [code] = page.widget.buffers[-1]
    assert code == (live._STATIC / "views.js").read_bytes()
    assert answer["hash"] == live._drawing()[0]


def test_what_a_notebook_may_save_with_a_widget_is_small() -> None:
    widget = live.connect(Counted()).widget
    size = sum(len(str(v)) for v in widget.get_state().values())
    assert size < 2500
    assert len(live._connections) == 1


def test_the_oldest_of_too_many_views_ends(view: Counted) -> None:
    first = live.connect(view)
    for _ in range(live._MOST):
        live.connect(view)
    assert len(live._connections) == live._MOST
    assert first.widget.comm is None  # closed


@pytest.mark.timeout(30)
@pytest.mark.parametrize("view_id", ["elsewhere", "", "the second's"])
def test_a_page_that_changes_its_id_does_not_stop_the_kernel(
    view: Counted, monkeypatch: pytest.MonkeyPatch, view_id: str
) -> None:
    monkeypatch.setattr(live, "_MOST", 2)
    first, second = live.connect(view), live.connect(view)
    # As ipywidgets takes an update from the page.
    first.widget.set_state({"view_id": second.view_id if view_id == "the second's" else view_id})
    third = live.connect(view)
    assert first.widget.comm is None
    assert list(live._connections.values()) == [second, third]
    live.end()
    assert not live._connections


def test_without_a_kernel_a_view_is_text_alone() -> None:
    assert hosts.host().name == "terminal"
    assert live.bundle(Counted()) == {"text/plain": "counted"}
    assert not live._connections


AT_EXIT = """
import time, torch
from jaxtorch.widgets import live
from jaxtorch.widgets.memory import MemoryView

class Widget:
    view_id = "a"
    def send(self, *_): pass
    def on_msg(self, *_): pass

x = torch.ones(3, device="jax")
connection = live.Connection(MemoryView({}), Widget())
connection.receive(None, {"v": live.VERSION, "type": "open"}, [])
for i in range(50):
    x = torch.ones(3 + i, device="jax")
    time.sleep(0.01)
print("ended", flush=True)
"""


def test_a_process_ends_while_a_view_is_visible() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr[-500:]) == (0, "ended\n", "")
