"""Writes down what torch holds in a program that uses only the CPU, as JSON, for `test_installed.py`.

Everything that a program can reach: the attributes of all modules and classes of torch, the kernels of all operators,
and what belongs to the interpreter (modules, handlers, environment).
"""

import gc
import io
import json
import os
import re
import signal
import sys
import types
import warnings

import torch

BUILTIN = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
)


def use_the_cpu():
    """What programs do, and what calls into every backend that torch knows."""
    import torch.multiprocessing
    import torch.utils.data
    import torch.utils.dlpack

    torch.manual_seed(0)
    torch.Generator().manual_seed(3)
    x = torch.ones(3, 3, requires_grad=True)
    (torch.nn.Linear(3, 3)(x) @ x).sum().backward()
    torch.UntypedStorage(4)
    x.is_pinned()
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    torch.load(file)
    list(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4))))


def text(value, nested=False):
    """A description of a value that is the same in every process where the value is."""
    if isinstance(value, types.FunctionType):
        code = value.__code__
        return f"function {value.__qualname__}, {code.co_filename}:{code.co_firstlineno}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__}"
    if isinstance(value, classmethod | staticmethod):
        return text(value.__func__)
    if isinstance(value, property):
        return f"property of {text(value.fget)}, {text(value.fset)}"
    if isinstance(value, BUILTIN):
        return re.sub("0x[0-9a-f]+", "", repr(value))
    if (
        type(value) is int and value > 2**20
    ):  # a Python at a fixed address has its own types below 2**32
        return "an address"
    if isinstance(value, int | float | str | bytes | None | torch.dtype | torch.device):
        return repr(value)
    if not nested and isinstance(value, dict):
        items = (f"{text(k, True)}: {text(v, True)}" for k, v in value.items())
        return f"{type(value).__name__} {sorted(items)}"
    if not nested and isinstance(value, list | tuple | set | frozenset):
        return f"{type(value).__name__} {sorted(text(v, True) for v in value)}"
    return type(value).__qualname__


def holdings():
    """Every attribute and every operator by its name, and how it is described."""
    values, classes = {}, set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "torch" and module is not None:
            for attribute, value in list(vars(module).items()):
                values[f"{name}.{attribute}"] = text(value)
                if type(value) is not type(torch.ops) and isinstance(value, type):
                    classes |= {value, type(value)}
    for cls in classes:
        if cls.__module__.partition(".")[0] == "torch":
            for attribute, value in list(vars(cls).items()):
                values[f"{cls.__module__}.{cls.__qualname__}().{attribute}"] = text(value)
    for op in torch._C._dispatch_get_all_op_names():
        values[f"operator {op}"] = torch._C._dispatch_dump(op)
    values["handler of SIGINT"] = repr(signal.getsignal(signal.SIGINT))
    values["callbacks of gc"] = text(gc.callbacks)
    values["import hooks"] = text(sys.meta_path) + text(sys.path_hooks)
    values["environment"] = text(
        {k: v for k, v in os.environ.items() if "AUTOLOAD" not in k and "PYTEST" not in k}
    )
    return values


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # some attributes are deprecated
    use_the_cpu()
    json.dump({"holdings": holdings(), "modules": sorted(sys.modules)}, sys.stdout)
