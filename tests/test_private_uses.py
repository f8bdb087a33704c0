"""Every use of a private name of torch or JAX has an entry in a table, and every entry is used.

Private is a name with a leading underscore: a module, what a module holds, an attribute of one of torch's or JAX's
objects. `base/torch_private.py`, `base/torch_changes.py`, `base/torch_views.py`, `base/torch_dynamo.py`,
`base/torch_naming.py`, `base/jax_private.py`, `base/jax_live.py` and `base/jax_meshes.py` use what the tables list; the
rest of the code reads in place only listed attributes of objects. Annotations are never evaluated, and do not count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
import torch

from jaxtorch.base import jax_private, torch_hooks
from jaxtorch.base.hooks import OF_INSTANCES, resolve

ROOT = Path(__file__).parents[1]
FOLDERS = ("jaxtorch_kernel", "widgets", "magics")
LIBRARIES = ("torch", "jax", "jaxlib")
HOLDERS = {
    f"jaxtorch_kernel/base/{n}.py"
    for n in (
        "torch_private",
        "torch_changes",
        "torch_views",
        "torch_dynamo",
        "torch_naming",
        "jax_private",
        "jax_live",
        "jax_meshes",
    )
}
TABLES = {**torch_hooks.TABLE, **jax_private.TABLE}
PATHS = {path for paths in TABLES for path in paths.split(" | ")}

# Objects whose private attributes the code might read, by any name that it gives them.
SAMPLES = [
    torch.ones(1, requires_grad=True),
    torch.ones(1, requires_grad=True).sum().grad_fn,
    torch.ones(1).untyped_storage(),
    torch.Generator(),
    torch.nn.Linear(1, 1),
    torch.optim.SGD([torch.ones(1)]),
    torch.ops.aten.add,
    torch.ops.aten.add.Tensor,
    torch.autograd.Function,
    torch.library.Library,
    jax.numpy.ones(1),
    jax.jit(lambda x: x).trace(1.0),
    jax.jit(lambda x: x).lower(1.0),
    jax.jit(lambda x: x).lower(1.0).compile(),
    jax.make_jaxpr(lambda x: x)(1.0).jaxpr,
]


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


OF_THIS_PROJECT = {"_call", "_name"}  # used outside of the file that defines them
ATTRIBUTES = {n for sample in SAMPLES for n in dir(sample) if is_private(n)} - OF_THIS_PROJECT
LISTED = {re.split(r"[.:]", path)[-1] for path in PATHS}


def in_place(path: str) -> bool:
    """Whether a path of a table is an attribute of objects, which code reads where it has them."""
    owner = path.rpartition(".")[0]
    return OF_INSTANCES in path or not isinstance(resolve(owner), type(torch))


def chain(node: ast.expr) -> list[str] | None:
    """The names of `a.b.c`; None if it does not begin with a name."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else None


def not_evaluated(tree: ast.Module) -> set[int]:
    annotations = [
        getattr(node, field)
        for node in ast.walk(tree)
        for field in ("annotation", "returns")
        if getattr(node, field, None) is not None
    ]
    typing = [
        n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)
    ]
    return {id(part) for whole in [*annotations, *typing] for part in ast.walk(whole)}


def own_names(tree: ast.Module) -> set[str]:
    """The private attributes that a file gives to objects of its own classes."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found |= {n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef)}
            names = (n.target for n in node.body if isinstance(n, ast.AnnAssign))
            found |= {n.id for n in names if isinstance(n, ast.Name)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) == "self" else set()
    return found


def uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and path of each use of a private name; of an attribute of an object, its name with a leading dot."""
    left_out, own = not_evaluated(tree), own_names(tree)
    bound: dict[str, str] = {}
    nodes = [n for n in ast.walk(tree) if id(n) not in left_out]
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                if first in LIBRARIES:
                    bound[alias.asname or first] = alias.name if alias.asname else first
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                path = f"{node.module}.{alias.name}"
                if path.partition(".")[0] in LIBRARIES:
                    bound[alias.asname or alias.name] = path
                    yield node.lineno, path
    within: set[int] = set()
    for node in nodes:
        if not isinstance(node, ast.Attribute):
            continue
        names = chain(node)
        library = names is not None and names[0] in bound
        if library and id(node) not in within:
            within |= {id(n) for n in ast.walk(node)}
            yield node.lineno, ".".join([bound[names[0]], *names[1:]])
        elif not library and node.attr in ATTRIBUTES - own:
            yield node.lineno, f".{node.attr}"


def is_listed(path: str, holder: bool) -> bool:
    if path.startswith("."):
        return path[1:] in LISTED
    parts = path.split(".")
    if path.startswith("torch.ops."):  # the names of operators are data: `overload` looks them up
        private = [p for p in parts[4:] if is_private(p)]
        return set(private) <= LISTED
    if not any(map(is_private, parts)):
        return True
    return any(
        (path == entry or path.startswith(f"{entry}.") or (holder and entry.startswith(f"{path}.")))
        for entry in PATHS
        if holder or in_place(entry)
    )


TREES = {
    str(file.relative_to(ROOT)): ast.parse(file.read_text())
    for folder in FOLDERS
    for file in sorted((ROOT / folder).rglob("*.py"))
    if "node_modules" not in file.parts
}


def unlisted(file: str, tree: ast.Module) -> list[str]:
    return [
        f"{file}:{line}: {path}"
        for line, path in uses(tree)
        if not is_listed(path, file in HOLDERS)
    ]


def test_every_use_of_a_private_name_is_in_a_table() -> None:
    found = [use for file, tree in TREES.items() for use in unlisted(file, tree)]
    assert not found, "\n".join(["not in the tables of base/:", *found])


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import torch\ntorch._C._set_conj(x, True)", "torch._C._set_conj"),
        ("import torch\ndef f():\n    return torch._C._new_hook()", "torch._C._new_hook"),
        ("from torch._inductor import config", "torch._inductor.config"),
        ("import torch._inductor.config", "torch._inductor.config"),
        ("from torch import _dynamo as d\nd.reset()", "torch._dynamo"),
        ("from jax._src import core", "jax._src.core"),
        ("import jax\njax.core._x", "jax.core._x"),
        ("def f(op, x):\n    return op._op_dk(1, x)._grad_fn", "._grad_fn"),
        ("def f(tensor):\n    return tensor._fix_weakref()", "._fix_weakref"),
        ("def f(op):\n    return op._dispatch_cache", "._dispatch_cache"),
        ("import torch\ntorch.ops.aten.mul.Tensor._handle", "torch.ops.aten.mul.Tensor._handle"),
    ],
)
def test_the_search_finds(code: str, expected: str) -> None:
    found = unlisted("jaxtorch_kernel/some.py", ast.parse(code))
    assert [use.rpartition(" ")[2] for use in found][:1] == [expected]


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ndef f(op: torch._ops.OpOverload) -> torch._C.Node: pass",
        "def f(tensor):\n    return tensor._version",
        "import torch\ntorch.ops.aten._ctc_loss.Tensor(x)",
        "class A:\n    def f(self):\n        return self._name",
    ],
)
def test_the_search_passes(code: str) -> None:
    assert not unlisted("jaxtorch_kernel/some.py", ast.parse(code))


def test_every_entry_of_a_table_is_used() -> None:
    files = [ROOT / file for file in TREES if not file.endswith("torch_hooks.py")]
    text = "\n".join(file.read_text() for file in files)
    left_over = [p for p in PATHS if not re.search(rf"\b{re.split(r'[.:]', p)[-1]}\b", text)]
    assert not left_over


def test_this_torch_and_this_jax_have_every_hook() -> None:
    lacking = []
    for paths in TABLES:
        if OF_INSTANCES not in paths and not any(exists(path) for path in paths.split(" | ")):
            lacking.append(paths)
    assert not lacking


def exists(path: str) -> bool:
    try:
        resolve(path)
    except (AttributeError, ImportError):
        return False
    return True
