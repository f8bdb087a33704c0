"""The status table is drawn from plain data alone."""

from __future__ import annotations

from html.parser import HTMLParser

from jaxtorch.insight.status import DeviceMemory, Status
from jaxtorch.widgets.status import StatusView

STATUS = Status(
    platform="tpu",
    devices=(DeviceMemory("TPU_0", 3 * 2**20, 16 * 2**30), DeviceMemory("TPU_1", 0, None)),
    peak=5 * 2**20,
    default_device="jax:0",
    default_dtype="float32",
    dtype_policy="as they are",
    eager_calls="in C++",
    compiled=12,
    compile_seconds=3.25,
    fallbacks={"aten::<odd>": 2, "aten::other": 1},
    options={"fallback": "warn"},
    versions={"torch": "2.13.0"},
)


class Tags(HTMLParser):
    """Collects the tags of a page, and checks that each is closed."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.names.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_text_has_a_line_for_each_fact() -> None:
    assert repr(StatusView(STATUS)).splitlines() == [
        "Platform           tpu (torch 2.13.0)",
        "Devices            TPU_0: 3.00 MiB of 16.0 GiB allocated",
        "                   TPU_1: 0 allocated",
        "Memory peak        5.00 MiB",
        "Default device     jax:0",
        "Dtypes             float32 by default; as they are",
        "Eager calls        run in C++",
        "Compiled programs  12 in 3.2 s",
        "Ran on the CPU     aten::<odd> × 2",
        "                   aten::other × 1",
        "Options            fallback=warn",
    ]


def test_html_is_a_plain_table_with_everything_escaped() -> None:
    page = StatusView(STATUS)._repr_html_()
    tags = Tags(page)
    assert not tags.open
    assert tags.names == {"table", "tr", "th", "td", "br"}
    assert "aten::&lt;odd&gt; × 2" in page
