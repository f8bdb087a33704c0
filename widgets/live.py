"""Live views: they follow the session while a cell runs, and answer requests from the page.

When a view is shown, a widget (`anywidget`) is created beside its HTML. The state of the widget holds no data, only its
id and the name of the drawing code. Everything else is sent as messages (`protocol.py`), and only while a page shows
the view:

    page                          kernel
     |  <- the widget opens         |   `bundle`: an output with HTML in it, and a widget
     |  bundle ->                   |   only if this page has no drawing code yet
     |  <- bundle + buffer          |
     |  open ->                     |   the view is visible
     |  <- state                    |   from now on a thread polls `View.revision` ten times a second
     |  <- patch, patch, ...        |
     |  ask ->      <- answer       |
     |  close ->                    |   no longer visible: the thread ends with the last view

A notebook may save the shell (`static/shell.js`, about a kilobyte) with each widget. The drawing code
(`static/views.js`) is sent as a binary message, and the page imports it from memory. So it needs no port, no network
and no second file. A session without anywidget only shows the HTML. It loads neither file.
"""

from __future__ import annotations

import atexit
import hashlib
import threading
import traceback
import uuid
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import hosts
from .protocol import VERSION, Data, Json, difference, message, plain
from .saved import start_of

if TYPE_CHECKING:
    from .view import View

_STATIC = Path(__file__).parent / "static"
_PERIOD = 0.1  # seconds between polls for changes
_LONGEST_STOP = 5.0  # seconds to wait for the thread when the process ends
_MOST = 50  # live views at a time; each of them keeps its data alive


def bundle(view: View) -> Data | tuple[Data, Data]:
    """The output of a view in this session's front end: data by media type, and metadata."""
    host = hosts.host()
    text = view.text()
    if host.name == "terminal":
        return {"text/plain": text}
    data: Data = {"text/plain": start_of(text)}
    page = view.html()
    if not (view.kind and host.live):
        return data | {"text/html": page}
    connection = connect(view)
    data["text/html"] = mark_page(page, connection.view_id)
    if host.in_place:
        return data
    more, metadata = hosts.widget_bundle(connection.widget.model_id)
    return data | more, metadata


def mark_page(page: str, view_id: str) -> str:
    """HTML that the widget with this id can find in the page. The mark is a class, because all sanitizers keep it."""
    return f'<div class="jaxtorch-view jaxtorch-view-{escape(view_id)}">{page}</div>'


@cache
def _drawing() -> tuple[str, bytes]:
    """The name (a hash) and the bytes of the drawing code."""
    code = (_STATIC / "views.js").read_bytes()
    return hashlib.sha256(code).hexdigest()[:16], code


class Connection:
    """A view, its widget, and the state last sent to the page."""

    def __init__(self, view: View, widget: Any):
        self.view = view
        self.widget = widget
        self.view_id: str = widget.view_id  # a copy, because the page can change that of the widget
        self._lock = threading.RLock()  # requests may come from another thread (a subshell)
        self._sent: Data | None = None
        self._sent_revision: object = None
        self._failed = ""  # the error of the last poll
        self._number = 0

    def receive(self, widget: object, content: Json, buffers: object) -> None:
        """Handle a message from the page. A bad message must not raise into the kernel."""
        if not isinstance(content, dict) or content.get("v") != VERSION:
            self._send("error", id=None, message=_version_error(content))
            return
        kind = content.get("type")
        if kind == "bundle":
            name, code = _drawing()
            self.widget.send(message("bundle", hash=name), [code])
        elif kind == "open":
            self.send_state()
            _ticker.watch(self)
        elif kind == "close":
            _ticker.forget(self)
        elif kind == "ask":
            self._answer(content)

    def _answer(self, content: Data) -> None:
        try:
            arguments = content.get("arguments") or {}
            value = plain(self.view.answer(str(content.get("ask")), arguments))
        except Exception as error:
            self._send("error", id=content.get("id"), message=_error_text(error))
        else:
            self._send("answer", id=content.get("id"), value=value)
        self.look()  # an answer may have changed what is shown (`clear`, `keep`)

    def send_state(self) -> None:
        """Send the full state."""
        with self._lock:
            try:
                self._sent_revision = self.view.revision()
                self._sent = plain(self.view.data())
            except Exception as error:
                self._send("error", id=None, message=_error_text(error))
                return
            self._number += 1
            self._send("state", revision=self._number, kind=self.view.kind, data=self._sent)

    def look(self) -> None:
        """Send the changes since the last message, if there are any."""
        with self._lock:
            if self._sent is None:
                return
            try:
                revision = self.view.revision()
                if revision is None or (revision == self._sent_revision and not self._failed):
                    return
                data = plain(self.view.data())
            except Exception as error:  # the session may be changing: try again at the next poll
                if _error_text(error) != self._failed:
                    self._failed = _error_text(error)
                    self._send("error", id=None, message=self._failed)
                return
            changes = difference(self._sent, data)
            self._sent_revision, self._sent = revision, data
            if changes or self._failed:
                self._failed = ""
                self._number += 1
                self._send("patch", revision=self._number, changes=changes)

    def end(self) -> None:
        """Stop updates. The page keeps its last state."""
        _ticker.forget(self)
        _connections.pop(self.view_id, None)
        self._send("end")
        self.widget.close()

    def _send(self, type: str, **fields: Json) -> None:
        self.widget.send(message(type, **fields))


def _error_text(error: Exception) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _version_error(content: Json) -> str:
    theirs = content.get("v") if isinstance(content, dict) else None
    return f"the page uses version {theirs} of the view protocol, the kernel version {VERSION}: reload the page"


class _Ticker:
    """One thread polls all visible views. It only exists while a view is visible."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: set[Connection] = set()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        # A daemon thread that is in C++ when the interpreter ends would abort the process.
        atexit.register(self._stop)

    def watch(self, connection: Connection) -> None:
        """Start polling a connection, if its view can change."""
        if connection.view.revision() is None:
            return
        with self._lock:
            self._watched.add(connection)
            if self._thread is None:
                self._wake.clear()
                self._thread = threading.Thread(
                    target=self._run, name="jaxtorch views", daemon=True
                )
                self._thread.start()

    def forget(self, connection: Connection) -> None:
        """Stop polling a connection."""
        with self._lock:
            self._watched.discard(connection)
            if not self._watched:
                self._wake.set()

    def _stop(self) -> None:
        """End the thread, when the process ends."""
        with self._lock:
            self._watched.clear()
            self._wake.set()
            thread = self._thread
        if thread is not None:
            thread.join(_LONGEST_STOP)

    def flush(self) -> None:
        """Send all changes now."""
        with self._lock:
            watched = list(self._watched)
        for connection in watched:
            connection.look()

    def _run(self) -> None:
        while True:
            self._wake.wait(_PERIOD)
            with self._lock:
                if not self._watched:
                    self._thread = None
                    return
            self.flush()


_ticker = _Ticker()
_connections: dict[str, Connection] = {}  # the oldest first


def connect(view: View) -> Connection:
    """Create a widget for a view. If there are too many live views, the oldest ends."""
    while len(_connections) >= _MOST:
        next(iter(_connections.values())).end()
    connection = Connection(view, _widget_class()())
    connection.widget.on_msg(connection.receive)
    _connections[connection.view_id] = connection
    return connection


def flush() -> None:
    """Send all changes. Called at the end of a cell, because some front ends show no earlier messages."""
    _ticker.flush()


def end() -> None:
    """End all live views of this session. `%unload_ext` calls this."""
    for connection in list(_connections.values()):
        connection.end()


@cache
def _widget_class() -> Any:
    """The widget class. It is created with the first view, because anywidget may be missing."""
    import anywidget
    import traitlets

    class Live(anywidget.AnyWidget):
        _esm = (_STATIC / "shell.js").read_text()
        bundle = traitlets.Unicode(_drawing()[0]).tag(sync=True)
        view_id = traitlets.Unicode().tag(sync=True)

        @traitlets.default("view_id")
        def _new_view_id(self) -> str:
            return uuid.uuid4().hex

    return Live
