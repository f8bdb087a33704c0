"""Names of the inputs of a captured program: `x`, `model.0.weight`, `adam.exp_avg[3]`.

An argument has the name of its parameter, and its path within the argument. A parameter or buffer of a module has the
path by which the code first reached the module, any other tensor the path by which the code read it. The state of an
optimizer is numbered by its parameters, through all groups. Names are only displayed: nothing depends on them.

An input also has a role: what it is to the training of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeGuard
from weakref import ref

import torch
from torch.optim import Optimizer

from ...base.naming import RANDOM_KEY, parameter_names, readable
from ...base.torch_private import pytree
from ...programs.rng import RandomKey
from ...programs.trees import is_device_tensor
from ...storage.buffer import Buffer, buffer_of

Tensor = torch.Tensor
_FUNCTION = "the function"  # the recorder's path of what is captured
_PREFIXES = ("an argument.", "self.", f"{_FUNCTION}.")
_MODULE = "model"  # the name of a module that is captured itself

# "hyperparameter": a learning rate and the like; "tensor": any other that the code read by name.
Role = Literal[
    "parameter",
    "buffer",
    "optimizer state",
    "hyperparameter",
    "gradient",
    "argument",
    "random key",
    "tensor",
]


class Labels:
    """The names of what one trace read.

    Args:
        reached: objects that existed before the code ran, each with the path by which the code reached it.
        tensors: those that the code read by name: path, reference.
        optimizers: those that the code used: path, optimizer.
        gradients: leaves, with their `.grad` before.

    Attributes:
        names, roles: by the identity of a buffer.
        optimizers: by the identity of an optimizer.
    """

    def __init__(
        self,
        reached: Iterable[tuple[object, str]] = (),
        tensors: Iterable[tuple[str, ref[Tensor]]] = (),
        optimizers: Iterable[tuple[str, Optimizer]] = (),
        gradients: Iterable[tuple[ref[Tensor], Tensor | None]] = (),
    ):
        self.names: dict[int, str] = {}
        self.roles: dict[int, Role] = {}
        self.optimizers: dict[int, str] = {}
        self._gradients: list[tuple[Buffer, Buffer]] = []
        modules = [(v, p.replace(".__self__", "")) for v, p in reached if _is_module(v) and p]
        self._is_module = any(path == _FUNCTION for _, path in modules)
        for module, path in modules:
            for name, parameter in module.named_parameters(recurse=False):
                self._add(f"{path}.{name}", parameter, "parameter")
            for name, owned in module.named_buffers(recurse=False):
                self._add(f"{path}.{name}", owned, "buffer")
        for path, optimizer in optimizers:
            self._add_optimizer(path or type(optimizer).__name__.lower(), optimizer)
        for path, reference in tensors:
            tensor = reference()
            trained = tensor is not None and tensor.is_leaf and tensor.requires_grad
            self._add(path, tensor, "parameter" if trained else "tensor")
        for leaf, gradient in gradients:
            tensor = leaf()
            if is_device_tensor(tensor) and is_device_tensor(gradient):
                self._gradients.append((buffer_of(tensor), buffer_of(gradient)))

    def _add(self, path: str, tensor: object, role: Role) -> None:
        if is_device_tensor(tensor):
            self.names.setdefault(id(buffer_of(tensor)), self._name(path))
            self.roles.setdefault(id(buffer_of(tensor)), role)

    def _name(self, path: str) -> str:
        """A path, without what the recorder calls the object that it starts from."""
        if self._is_module and path.startswith(f"{_FUNCTION}."):
            return readable(_MODULE + path.removeprefix(_FUNCTION))
        for prefix in _PREFIXES:
            path = path.removeprefix(prefix)
        return readable(path)

    def _add_optimizer(self, path: str, optimizer: Optimizer) -> None:
        path = self.optimizers[id(optimizer)] = self._name(path)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for i, parameter in enumerate(parameters):
            for key, value in _items(optimizer.state.get(parameter)):
                self._add(f"{path}.{key}[{i}]", value, "optimizer state")
        for i, group in enumerate(optimizer.param_groups):
            for key, value in group.items():
                self._add(_of_group(path, key, i, optimizer), value, "hyperparameter")

    def add_rate(self, optimizer: Optimizer | None, index: int, buffer: Buffer) -> None:
        """Name the learning rate of a group."""
        path = self.optimizers.get(id(optimizer))
        if optimizer is not None and path is not None:
            self.names[id(buffer)] = _of_group(path, "lr", index, optimizer)
            self.roles[id(buffer)] = "hyperparameter"

    def add_number(self, path: str, buffer: Buffer) -> None:
        """Name an operand that is a number of the user's, or is computed from it."""
        self.names[id(buffer)] = self._name(path)
        self.roles[id(buffer)] = "hyperparameter"

    def of_inputs(
        self, buffers: Sequence[Buffer], function: Callable[..., object], call: CallArguments
    ) -> tuple[list[str], list[Role]]:
        """The names and roles of the inputs of the program, in order."""
        given: dict[int, str] = {}
        roles = dict(self.roles)
        for name, leaf in call.named_leaves(function):
            tensors: list[tuple[str, object, Role]] = [(name, leaf, "argument")]
            if isinstance(leaf, torch.nn.Module):
                tensors = [(f"{name}.{n}", t, "parameter") for n, t in leaf.named_parameters()]
                tensors += [(f"{name}.{n}", t, "buffer") for n, t in leaf.named_buffers()]
            for path, tensor, role in tensors:
                if is_device_tensor(tensor):
                    given.setdefault(id(buffer_of(tensor)), path)
                    roles.setdefault(id(buffer_of(tensor)), role)
        keys = {id(b): RANDOM_KEY for b in buffers if isinstance(b, RandomKey)}
        names = {**self.names, **given, **keys}
        roles.update(dict.fromkeys(keys, "random key"))
        for of_leaf, of_gradient in self._gradients:
            roles[id(of_gradient)] = "gradient"
            if id(of_leaf) in names:
                names.setdefault(id(of_gradient), f"{names[id(of_leaf)]}.grad")
        return (
            [names.get(id(buffer), f"input[{i}]") for i, buffer in enumerate(buffers)],
            [roles.get(id(buffer), "tensor") for buffer in buffers],
        )


class CallArguments:
    """The arguments of a call, for their names.

    Args:
        leaves: of the call.
        structure: of its positional and keyword arguments.
    """

    def __init__(self, leaves: Sequence[object], structure: pytree.TreeSpec):
        self._leaves, self._structure = leaves, structure

    def named_leaves(self, function: Callable[..., object]) -> Iterator[tuple[str, object]]:
        """Each leaf with the name of its parameter, and its path in the argument."""
        places = pytree.tree_unflatten(range(len(self._leaves)), self._structure)
        positional = _parameters(function, self._structure.children()[0].num_children)
        args, kwargs = places
        named = [*zip(positional, args, strict=False), *kwargs.items()]
        for name, tree in named:
            for path, i in pytree.tree_flatten_with_path(tree)[0]:
                yield readable(f"{name}{pytree.keystr(path)}"), self._leaves[i]


def _parameters(function: Callable[..., object], count: int) -> list[str]:
    """The names of the first `count` positional arguments of a function or module."""
    names: list[str] | None = getattr(getattr(function, "__self__", None), "argument_names", None)
    if names is not None:  # of a graph, whose inputs have names of their own
        return names
    called = function.forward if isinstance(function, torch.nn.Module) else function
    return parameter_names(called, count)


def _is_module(value: object) -> TypeGuard[torch.nn.Module]:
    return isinstance(value, torch.nn.Module)


def _of_group(path: str, key: str, index: int, optimizer: Optimizer) -> str:
    return f"{path}.{key}[{index}]" if len(optimizer.param_groups) > 1 else f"{path}.{key}"


def _items(state: object) -> Iterable[tuple[object, object]]:
    """The values of the state of one parameter; other libraries' optimizers may have other objects than a dict."""
    if isinstance(state, dict):
        return state.items()
    return enumerate(state) if isinstance(state, list | tuple) else [("state", state)]
