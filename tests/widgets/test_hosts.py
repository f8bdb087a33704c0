"""Front ends that cannot be reached from a test, by what they document of themselves.

* VS Code sets `__vsc_ipynb_file__` in the kernel's namespace and renders `application/vnd.jupyter.widget-view+json`.
* Colab has the module `google.colab`, ipywidgets 7's protocol (widgets are outputs of that media type), and
  finds the manager of widgets that are not its own by a URL in the output's metadata.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from jaxtorch.widgets import hosts, live

from .test_live import Counted


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A shell with a kernel behind it."""
    shell = SimpleNamespace(kernel=object(), user_ns={})
    monkeypatch.setattr(hosts, "_shell", lambda: shell)
    for name in ("VSCODE_PID", "COLAB_RELEASE_TAG"):
        monkeypatch.delenv(name, raising=False)
    yield shell
    live.end()


@pytest.fixture
def colab(kernel: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Colab's module; the list has what was asked of it."""
    asked: list[str] = []
    output = ModuleType("google.colab.output")
    output.enable_custom_widget_manager = lambda: asked.append("enabled")  # type: ignore[attr-defined]
    output._widgets = SimpleNamespace(_installed_url="https://colab/manager.js")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    monkeypatch.setitem(sys.modules, "google.colab.output", output)
    return asked


def shown(view: Counted) -> tuple[dict[str, Any], dict[str, Any]]:
    bundle = live.bundle(view)
    return bundle if isinstance(bundle, tuple) else (bundle, {})


def test_in_a_lab_an_output_is_html_alone_and_the_widget_finds_it(kernel: SimpleNamespace) -> None:
    data, metadata = shown(Counted())
    assert set(data) == {"text/plain", "text/html"}
    assert not metadata
    [view_id] = live._connections
    assert f'class="jaxtorch-view jaxtorch-view-{view_id}"' in data["text/html"]
    assert "<p>counted</p>" in data["text/html"]


def test_in_vs_code_an_output_is_a_widget_beside_the_html(kernel: SimpleNamespace) -> None:
    kernel.user_ns["__vsc_ipynb_file__"] = "/home/me/a.ipynb"
    assert hosts.host().name == "vscode"
    data, metadata = shown(Counted())
    [connection] = live._connections.values()
    named = data[hosts.WIDGET]
    assert (named["version_major"], named["model_id"]) == (2, connection.widget.model_id)
    assert "<p>counted</p>" in data["text/html"]
    assert not metadata


def test_in_colab_the_widgets_manager_is_named_too(
    kernel: SimpleNamespace, colab: list[str]
) -> None:
    host = hosts.host()
    assert (host.name, host.in_place) == ("colab", False)
    data, metadata = shown(Counted())
    assert data[hosts.WIDGET]["version_major"] == 2
    assert (
        metadata[hosts.WIDGET]["colab"]["custom_widget_manager"]["url"]
        == "https://colab/manager.js"
    )
    assert not hasattr(Counted, "_ipython_display_")


def test_what_changed_is_sent_at_the_end_of_a_cell(
    kernel: SimpleNamespace, colab: list[str]
) -> None:
    """Colab shows nothing before; `%load_ext jaxtorch` calls `flush` there."""
    view = Counted()
    shown(view)
    [connection] = live._connections.values()
    sent: list[dict[str, Any]] = []
    connection.widget.send = lambda content, buffers=None: sent.append(content)
    connection.receive(connection.widget, {"v": 1, "type": "open"}, [])
    with connection._lock:  # the thread has to wait
        view.n = 1
        live.flush()
    assert [m["type"] for m in sent] == ["state", "patch"]


def test_without_anywidget_a_view_is_its_html(
    kernel: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "find_spec", lambda name: None)
    data, metadata = shown(Counted())
    assert data == {"text/plain": "counted", "text/html": "<p>counted</p>"}
    assert not metadata
    assert not live._connections
