"""Run a notebook in a real kernel, print a line of progress for each cell, and write an HTML page of the notebook."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter
from nbformat import NotebookNode


class Progress:
    """One line for each code cell: its number, its first line, and the time it took."""

    def __init__(self, notebook: NotebookNode):
        self.cells = [i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
        self.started = 0.0

    def begin(self, cell: NotebookNode, cell_index: int) -> None:
        if cell_index in self.cells:
            self.started = time.perf_counter()
            number = self.cells.index(cell_index) + 1
            first = cell.source.splitlines()[0][:56]
            print(f"[{number:2}/{len(self.cells)}] {first:58}", end="", flush=True)

    def end(self, cell: NotebookNode, cell_index: int, **reply: object) -> None:
        if cell_index in self.cells:
            print(f"{time.perf_counter() - self.started:6.1f} s", flush=True)


def printed(notebook: NotebookNode) -> str:
    """Everything that the cells printed."""
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    return "".join(out.text for out in outputs if out.output_type == "stream")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a notebook and write it as HTML.")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("folder", type=Path, help="where the page goes")
    arguments = parser.parse_args()
    notebook = nbformat.read(arguments.notebook, as_version=4)
    progress = Progress(notebook)
    client = NotebookClient(
        notebook,
        timeout=1200,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],  # the kernel warns about its own TCP ports
        resources={"metadata": {"path": str(arguments.notebook.parent)}},
        on_cell_start=progress.begin,
        on_cell_executed=progress.end,
        on_cell_error=progress.end,
    )
    failure = None
    try:
        client.execute()
    except CellExecutionError as error:
        failure = error
    arguments.folder.mkdir(parents=True, exist_ok=True)
    page = arguments.folder / f"{arguments.notebook.stem}.html"
    body, _ = HTMLExporter().from_notebook_node(notebook)
    page.write_text(body, encoding="utf-8")
    print(f"\nThe page: {page}")
    if failure is not None:
        print(f"A cell failed: {failure.ename}: {failure.evalue}", file=sys.stderr)
        return 1
    for accuracy in re.findall(r"^Test accuracy: .*$", printed(notebook), re.MULTILINE):
        print(accuracy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
