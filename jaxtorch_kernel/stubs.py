"""Declare `torch.jax`, `Tensor.jax()`, `Tensor.is_jax` and `Module.jax()` for type checkers and editors.

    python -m jaxtorch.stubs             # writes `torch-stubs` beside the installed packages
    python -m jaxtorch.stubs --remove    # removes it again

These names are added when torch is imported, so mypy, pyright and editors, which only read files, do not know them.
This writes a partial stub package (PEP 561): a folder `torch-stubs` whose modules replace those of torch. A module can
only be replaced as a whole, so the stubs are made from the torch that is installed, with a few declarations inserted.
Run it again after an update of torch or jaxtorch.

A wheel cannot contain the package. pyright does not see *any* `.pyi` file of torch once a partial stub package exists,
so the package has a copy of each of them (3 MB), and these differ between versions of torch.
"""

from __future__ import annotations

import argparse
import ast
import shutil
import sys
import sysconfig
from pathlib import Path

import torch

from .device import module

NAME = "torch-stubs"
_WRITTEN = "# Written by `python -m jaxtorch.stubs`.\n"

_OF_A_TENSOR = '''
    @property
    def is_jax(self) -> _bool:
        """Whether the tensor is on the jax device."""
    def jax(
        self,
        device: torch.device | _int | str | None = None,
        non_blocking: _bool = False,
        *,
        memory_format: torch.memory_format = ...,
    ) -> Tensor:
        """The tensor on the jax device: itself if it is there, otherwise a copy."""
'''

_OF_A_MODULE = '''
def jax(self, device: torch.device | int | str | None = None) -> Self:
    """Move all parameters and buffers to the jax device."""
'''

# Results of methods of `torch.nn.Module` that their source does not declare; pyright infers none in a stub.
_RESULTS = {
    "__dir__": "list[str]",
    "load_state_dict": "_IncompatibleKeys",
    "named_modules": 'Iterator[tuple[str, "Module"]]',
    "register_load_state_dict_post_hook": "RemovableHandle",
    "register_load_state_dict_pre_hook": "RemovableHandle",
    "register_state_dict_post_hook": "RemovableHandle",
    "register_state_dict_pre_hook": "RemovableHandle",
}


def texts() -> dict[str, str]:
    """The files of the stub package by their path in it, made from the installed torch."""
    source = Path(torch.__file__).parent
    files = {str(f.relative_to(source)): f.read_text("utf-8") for f in source.rglob("*.pyi")}
    files["_C/__init__.pyi"] = _with_tensor_names(files["_C/__init__.pyi"])
    module_text = (source / "nn/modules/module.py").read_text("utf-8")
    files["nn/modules/module.pyi"] = _with_module_names(module_text)
    files["jax/__init__.pyi"] = _names_of_torch_jax()
    for name in module.SUBMODULES:
        files[f"jax/{name}.pyi"] = f"{_WRITTEN}from jaxtorch.device.{name} import *\n"
    files["py.typed"] = "partial\n"
    return files


def _with_tensor_names(text: str) -> str:
    """The stub of `torch._C` with the names of a tensor, and with `jax`: `torch` imports all names of `torch._C`."""
    head = "class TensorBase("
    before, declaration, rest = text.partition(head)
    line, _, rest = rest.partition("\n")
    if not declaration:
        raise RuntimeError(
            f"torch {torch.__version__} declares no {head!r} in torch/_C/__init__.pyi"
        )
    return (
        f"{_WRITTEN}from torch import jax as jax\n{before}{declaration}{line}{_OF_A_TENSOR}{rest}"
    )


def _with_module_names(text: str) -> str:
    """The module of `torch.nn.Module` as a stub: without the bodies of functions, and with `Module.jax`."""
    tree = _Declarations().visit(ast.parse(text))
    (module_class,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Module")
    module_class.body += ast.parse(_OF_A_MODULE).body
    return _WRITTEN + ast.unparse(tree) + "\n"


class _Declarations(ast.NodeTransformer):
    """Removes the bodies of functions, except their docstrings."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        has_text = ast.get_docstring(node) is not None
        node.body = node.body[:1] if has_text else ast.parse("...").body
        if node.returns is None and node.name in _RESULTS:
            node.returns = ast.parse(_RESULTS[node.name], mode="eval").body
        return node


def _names_of_torch_jax() -> str:
    """The stub of `torch.jax`: each of its names from the module that defines it."""
    lines = []
    for name in sorted(module.__all__):
        home = "torch.jax" if name in module.SUBMODULES else getattr(module, name).__module__
        lines.append(f"from {home} import {name} as {name}")
    return _WRITTEN + "\n".join(lines) + "\n"


def write(folder: Path) -> Path:
    """Write the package into a folder of packages, in place of an older one."""
    package = folder / NAME
    shutil.rmtree(package, ignore_errors=True)
    for path, text in texts().items():
        file = package / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    return package


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m jaxtorch.stubs", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--remove", action="store_true", help="remove the package")
    parser.add_argument(
        "--into",
        type=Path,
        default=Path(sysconfig.get_path("purelib")),
        help="another folder of packages",
    )
    arguments = parser.parse_args()
    if arguments.remove:
        shutil.rmtree(arguments.into / NAME, ignore_errors=True)
        print(f"Removed {arguments.into / NAME}")
        return 0
    print(f"Wrote {write(arguments.into)}, made from torch {torch.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
