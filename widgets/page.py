"""Describes a view once: as a page of facts, tables, code and charts. The page is drawn as text, as HTML and live.

A view returns its contents as a `Page`. `page_text.py` draws it for a terminal, `page_html.py` for a page without
scripts, and one live component (`js/src/views/page.tsx`) for a front end with widgets. The rows of a table are
dataclasses. Each field with a `Column` is shown, and all forms take the label and the unit from the `Column`:

    @dataclass(frozen=True)
    class LineRow(Row):
        location: Annotated[str, Column("made at")]
        arrays: Annotated[int, Column("arrays", "count")]
        bytes: Annotated[int, Column("size", "bytes")]

    Table("lines", columns(LineRow, rows), rows, title="By line")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import (
    Annotated,
    Generic,
    Literal,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from .schema import KERNEL_ONLY
from .units import Unit, written


@dataclass(frozen=True)
class Column:
    """The presentation of a field of a row.

    Attributes:
        label: the heading, the same in every form.
        unit: how a value is written. "code" is text in a fixed-width font; numbers are aligned right.
        help: an explanation of the column, for the tooltip of the heading.
        wide: whether a narrow notebook cell omits the column.
        wider: whether a cell of usual width omits it too.
        mark: the name of a boolean field of the row. If it is true, the value is an estimate and gets a "~" before it.
        key: the name of the field; `columns` fills it in.
        always: whether the column is shown even if it is empty in all rows, such as the code of an unknown file.
        text: whether a terminal shows the column.
        most: the maximum length of a value in a terminal; 0 for no limit.
    """

    label: str
    unit: Unit = "text"
    help: str = ""
    wide: bool = False
    wider: bool = False
    mark: str = ""
    key: str = ""
    always: bool = field(default=False, metadata=KERNEL_ONLY)
    text: bool = field(default=True, metadata=KERNEL_ONLY)
    most: int = field(default=0, metadata=KERNEL_ONLY)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table, or a line of code. Subclasses add the columns.

    Attributes:
        id: unique in its table; for a line of code, the line number.
        search_text: more text that a filter searches.
        opened: whether `detail` is open at first.
        detail: the sections that open below the row. A terminal only shows the notes among them.
    """

    id: int | str
    search_text: str = ""
    detail: tuple[Section, ...] = ()
    opened: bool = False


R = TypeVar("R", bound=Row, covariant=True)


@dataclass(frozen=True)
class Action:
    """A button of the live form; the static forms leave it out.

    Attributes:
        ask: the request to `View.answer`. If the answer is a section, it is shown. If it is a `File`, it is downloaded.
        arguments: the arguments of the request. The button of a row adds the row's id as `row`.
        when: for the button of a row, the name of a boolean field. The button is left out if the field is false.
    """

    label: str
    ask: str
    arguments: dict[str, str | int] = field(default_factory=dict)
    when: str = ""


@dataclass(frozen=True)
class File:
    """An answer to a request: a file to download."""

    name: str
    text: str
    type: Literal["file"] = "file"


@dataclass(frozen=True)
class Fact:
    """A name and one or more lines of text. With `code`, the lines are written in a fixed-width font."""

    name: str
    lines: tuple[str, ...]
    code: bool = False


@dataclass(frozen=True)
class Facts:
    """A list of facts."""

    facts: tuple[Fact, ...]
    title: str = ""
    type: Literal["facts"] = "facts"


@dataclass(frozen=True)
class Note:
    """A sentence or phrase, and smaller sentences below it. Code in them is between backticks."""

    text: str
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Notes:
    """A list of notes. A terminal shows the last few of them, or none if `text_most` is 0."""

    notes: tuple[Note, ...]
    title: str = ""
    text_most: int = field(default=3, metadata=KERNEL_ONLY)
    type: Literal["notes"] = "notes"


@dataclass(frozen=True)
class Table:
    """Rows under named columns.

    Attributes:
        key: unique on the page. The rows are sent under this key, so that a changed row is sent without the others.
        name: the name for a screen reader; the title by default.
        omitted: a sentence about rows that are left out.
        empty: the text that is shown if there are no rows.
        numbered: whether a first column numbers the rows.
        selects: whether a click on a row marks everything that belongs to it.
        actions: the buttons of each row.
        text_rows: how many rows a terminal shows; 0 leaves the table out.
        opened: whether the part of the HTML page that contains the table is open at first.
        weight: the key of the column that says which rows matter most, where a saved page has room for some of them.
    """

    key: str
    columns: tuple[Column, ...]
    rows: Sequence[Row]
    title: str = ""
    name: str = ""
    omitted: str = ""
    empty: str = "Nothing yet."
    numbered: bool = False
    selects: bool = False
    actions: tuple[Action, ...] = ()
    text_rows: int = field(default=1000, metadata=KERNEL_ONLY)
    opened: bool = field(default=False, metadata=KERNEL_ONLY)
    weight: str = field(default="", metadata=KERNEL_ONLY)
    type: Literal["table"] = "table"


@dataclass(frozen=True)
class Code(Generic[R]):
    """The lines of a source in order, each with its figures. The first column is the code; a line's id is its number.

    Lines without a figure are left out at first. The further back a column is, the sooner a narrow page leaves it out.

    Attributes:
        heat: the key of a column of shares. It sets the colour of each line.
        every: whether lines without a figure are shown too.
        in_text: whether a terminal shows the code.
    """

    key: str
    columns: tuple[Column, ...]
    rows: Sequence[R]
    title: str = ""
    name: str = ""
    heat: str = ""
    every: bool = False
    in_text: bool = field(default=True, metadata=KERNEL_ONLY)
    type: Literal["code"] = "code"


@dataclass(frozen=True)
class Chart:
    """A chart with its own drawing code: `js/src/charts` for the live form, `text` and `html` for the static forms.

    Attributes:
        kind: the name of the live drawing.
        data: a dataclass, for the live drawing.
        opened: whether the part of the HTML page that contains the chart is open at first.
    """

    kind: str
    data: object
    title: str = ""
    text: Callable[[], str] = field(default=str, metadata=KERNEL_ONLY)
    html: Callable[[], str] = field(default=str, metadata=KERNEL_ONLY)
    opened: bool = field(default=False, metadata=KERNEL_ONLY)
    type: Literal["chart"] = "chart"


Section: TypeAlias = "Facts | Notes | Table | Code[Row] | Chart"
SECTIONS = (Facts, Notes, Table, Code, Chart)


@dataclass(frozen=True)
class Page:
    """The contents of a view.

    Attributes:
        title: the heading; "" for none.
        facts: short facts beside the heading.
        finding: a sentence below them, the conclusion of the page. Code in it is between backticks.
        warnings: sentences above everything else.
        sections: the contents. Sections with the same title are one tab of the live form and one part that folds in
            HTML. Sections without a title are always visible.
        actions: buttons beside the heading.
        filter: the words by which rows are filtered; the live form can change them. None means no filter.
        filters: the name of what is filtered, for a screen reader.
    """

    title: str
    facts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    actions: tuple[Action, ...] = ()
    filter: str | None = None
    filters: str = "rows"
    finding: str = ""


def columns(row: type[Row], rows: Sequence[Row]) -> tuple[Column, ...]:
    """The columns of a class of rows, without those that are empty in all of these rows and not `always` shown.

    Example:
        >>> from jaxtorch.widgets.page import Column, Row, columns
        >>> @dataclass(frozen=True)
        ... class Named(Row):
        ...     name: Annotated[str, Column("name")]
        ...     size: Annotated[int | None, Column("size", "bytes")]
        >>> [c.key for c in columns(Named, [Named(id=1, name="x", size=None)])]
        ['name']
    """
    declared = _declared(row)
    if not rows:
        return declared
    return tuple(
        c for c in declared if c.always or any(getattr(r, c.key) not in (None, "") for r in rows)
    )


_declared_columns: dict[type[Row], tuple[Column, ...]] = {}


def _declared(row: type[Row]) -> tuple[Column, ...]:
    if row not in _declared_columns:
        hints = get_type_hints(row, include_extras=True)
        parts = {k: get_args(hint) for k, hint in hints.items() if get_origin(hint) is Annotated}
        _declared_columns[row] = tuple(
            replace(column, key=key)
            for key, (_, *others) in parts.items()
            for column in others
            if isinstance(column, Column)
        )
    return _declared_columns[row]


def cell(row: Row, column: Column) -> str:
    """A value of a row as text."""
    text = written(getattr(row, column.key), column.unit)
    marked = text and column.mark and getattr(row, column.mark)
    return f"~{text}" if marked else text


def filtered(table: Table, query: str) -> list[Row]:
    """The rows that contain every word. A word that follows a "-" must be missing. `js/src/table.tsx` does the same."""
    terms = query.lower().split()

    def fits(row: Row) -> bool:
        values = (getattr(row, column.key) for column in table.columns)
        text = " ".join([*(str(v) for v in values if v is not None), row.search_text]).lower()
        return all(
            term[1:] not in text if term.startswith("-") and len(term) > 1 else term in text
            for term in terms
        )

    return [row for row in table.rows if fits(row)]


def is_numeric(column: Column) -> bool:
    """Whether the values are aligned right."""
    return column.unit not in ("text", "code")


def heaviest(table: Table, rows: Sequence[Row], most: int) -> list[Row]:
    """At most `most` rows, in their order: those with the greatest weight; the first ones without weights."""
    if len(rows) <= most or not table.weight:
        return list(rows[:most])
    weights = [getattr(row, table.weight) or 0 for row in rows]
    chosen = sorted(range(len(rows)), key=lambda i: -weights[i])[:most]
    return [rows[i] for i in sorted(chosen)]


def shown_lines(code: Code[R], every: bool = False) -> list[R]:
    """The lines of code to show: those that have a figure, or every line if that is asked for or none has one."""
    keys = [column.key for column in code.columns[1:]]
    some = [row for row in code.rows if any(getattr(row, key) is not None for key in keys)]
    return some if some and not (every or code.every) else list(code.rows)


def ascending_gap(rows: Sequence[Row], i: int) -> bool:
    """Whether lines of code are left out before this one."""
    before, number = rows[i - 1].id, rows[i].id
    return i > 0 and isinstance(before, int) and isinstance(number, int) and number != before + 1
