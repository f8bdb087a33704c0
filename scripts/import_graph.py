"""The import graph of the three packages: read from the code, and drawn for `docs/architecture.md`.

    python -m scripts.import_graph     # redraws it, and prints the size of each layer

Imports inside functions count, since they could hide a cycle. Imports that only annotations use do not count.
"""

from __future__ import annotations

import ast
from importlib.util import resolve_name
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
FOLDERS = {
    "jaxtorch": ROOT / "jaxtorch_kernel",
    "jaxtorch.magics": ROOT / "magics",
    "jaxtorch.widgets": ROOT / "widgets",
}
# From the bottom up. `docs/architecture.md` describes each layer.
LAYERS = [
    *(
        "base",
        "native",
        "storage",
        "lowerings",
        "programs",
        "dispatch",
        "deferred",
        "operators",
        "device",
    ),
    *("capture", "interop", "parallel", "insight", "widgets", "magics"),
]
_FENCE = "<!-- import graph: `python -m scripts.import_graph` -->"


def modules() -> dict[str, Path]:
    """The file of each module; of a package, its `__init__.py`."""
    files = {}
    for package, folder in FOLDERS.items():
        for file in folder.rglob("*.py"):
            if "node_modules" not in file.parts:
                parts = file.relative_to(folder).with_suffix("").parts
                files[".".join([package, *parts]).removesuffix(".__init__")] = file
    return files


def imports(module: str, files: dict[str, Path]) -> set[str]:
    """The modules of this project that a module imports anywhere in its code, except for annotations alone."""
    file = files[module]
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(file.read_text())
    typing = [
        n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)
    ]
    left_out = {id(part) for branch in typing for part in ast.walk(branch)}
    names = set()
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            name = resolve_name("." * node.level + (node.module or ""), package)
            parts = {f"{name}.{alias.name}" for alias in node.names}
            names |= (parts & files.keys()) or {name}
    return names & files.keys() - {module}


def graph() -> dict[str, set[str]]:
    """The modules that each module imports."""
    files = modules()
    return {module: imports(module, files) for module in files}


def layer_of(module: str) -> str | None:
    """The layer of a module; None for those above all layers (`jaxtorch`, `jaxtorch.autoload`)."""
    part = module.removeprefix("jaxtorch").lstrip(".").split(".")[0]
    return part if part in LAYERS else None


def drawn() -> str:
    """A matrix of the layers, with a mark where the row's layer imports the column's layer.

    Every mark is left of the diagonal. A mark on the right would be an import of a higher layer.
    """
    edges = {
        (layer_of(module), layer_of(other))
        for module, others in graph().items()
        for other in others
    }
    width = max(map(len, LAYERS))
    lines = [" " * (width + 4) + "".join(f"{i:>3}" for i in range(1, len(LAYERS)))]
    for i, layer in enumerate(LAYERS):
        marks = [
            "  \\" if layer == m else "  x" if (layer, m) in edges else "  ." for m in LAYERS[:-1]
        ]
        lines.append(f"{i + 1:>2} {layer:{width}} {''.join(marks)}")
    return "\n".join(lines)


def sizes() -> str:
    """Files and lines of each layer, for a note about a change."""
    files = modules()
    rows = []
    for layer in LAYERS:
        texts = [file.read_text() for module, file in files.items() if layer_of(module) == layer]
        lines = sum(len(text.splitlines()) for text in texts)
        rows.append(f"{layer:12} {len(texts):>4} files {lines:>6} lines")
    return "\n".join(rows)


def section() -> str:
    """The drawing as it appears in the page."""
    return f"{_FENCE}\n\n```text\n{drawn()}\n```\n"


def main() -> None:
    """Replace the drawing in the page."""
    before, _, rest = PAGE.read_text().partition(_FENCE)
    _, _, after = rest.partition("\n```\n")
    PAGE.write_text(f"{before}{section()}{after}")
    print(sizes())


if __name__ == "__main__":
    main()
