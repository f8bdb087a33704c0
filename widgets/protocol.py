"""The protocol between a view and its live form. The other side is `js/src/protocol.ts`; change both together.

Every message is a JSON object with `v`, the version, and `type`. From the page:

    bundle                            send me the drawing code (once a page)
    open | close                      this view is visible | it no longer is
    ask     id, ask, arguments        a question to `View.answer`

From the kernel:

    bundle  hash                      the drawing code, in the message's buffer
    state   revision, kind, data      the full state
    patch   revision, changes         the changes since `revision - 1`; a page without that state sends `open` again
    answer  id, value                 the answer to `ask`
    error   id, message               the error of `ask`, or (id null) an error while drawing
    end                               no more updates; the page keeps what it shows

A patch has only the keys of `data` that changed. If a key holds rows (a list of objects that each have an `id`), the
patch has only the changed rows and the order of all rows. So a new program adds only one row to a patch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, TypeAlias

from .schema import sent_fields

VERSION = 1

Json: TypeAlias = Any  # as `json` reads it: dict, list, str, int, float, bool, None
Data: TypeAlias = dict[str, Json]


def message(type: str, **fields: Json) -> Data:
    """A message of this protocol."""
    return {"v": VERSION, "type": type, **fields}


def plain(value: object) -> Json:
    """A value as JSON that every browser can read. Non-finite numbers become null, tuples become lists.

    A dataclass becomes an object of its fields, without those that stay in the kernel (`schema.py`).

    Example:
        >>> from jaxtorch.widgets.protocol import plain
        >>> plain({"share": float("nan"), "shape": (2, 3)})
        {'share': None, 'shape': [2, 3]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in sent_fields(type(value))}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return plain(value.tolist())
    return str(value)


def difference(old: Mapping[str, Json], new: Mapping[str, Json]) -> Data:
    """The `changes` from one state to the next.

    Example:
        >>> from jaxtorch.widgets.protocol import difference
        >>> difference({"rows": [{"id": 1, "n": 1}]}, {"rows": [{"id": 1, "n": 2}, {"id": 2, "n": 1}]})
        {'rows': {'$rows': [{'id': 1, 'n': 2}, {'id': 2, 'n': 1}], '$order': [1, 2]}}
        >>> difference({"total": 1, "peak": 3}, {"total": 2, "peak": 3})
        {'total': {'$value': 2}}
    """
    changes: Data = {name: {"$gone": True} for name in old if name not in new}
    for name, value in new.items():
        if name in old and old[name] == value:
            continue
        before = _rows(old.get(name))
        after = _rows(value)
        if before and after:
            changed = [row for key, row in after.items() if before.get(key) != row]
            changes[name] = {"$rows": changed, "$order": list(after)}
        else:
            changes[name] = {"$value": value}
    return changes


def _rows(value: Json) -> dict[str | int, Data] | None:
    """The rows of a list by their ids; None if the value is not a list of rows with unique ids."""
    if not isinstance(value, list) or not all(isinstance(r, dict) and "id" in r for r in value):
        return None
    rows = {row["id"]: row for row in value if isinstance(row["id"], str | int)}
    return rows if len(rows) == len(value) else None
