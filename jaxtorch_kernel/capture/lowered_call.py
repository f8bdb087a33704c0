"""The call that a program was lowered for: its pytrees, as JAX's stages have them, and how it is called again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import torch
from jax.tree_util import PyTreeDef

from ..base.torch_private import pytree
from ..storage.dtypes import to_numpy, to_torch
from .dependencies.computed import Computed
from .dependencies.labels import CallArguments
from .results import Alias, Output, OutputView

if TYPE_CHECKING:
    from .captured import Captured

Info = jax.ShapeDtypeStruct
Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # by position and by name


def with_meta_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The arguments of a call, with a tensor on the meta device for each `jax.ShapeDtypeStruct`."""
    arguments: Arguments = pytree.tree_map_only(Info, _meta, (args, kwargs))
    return arguments


def _meta(info: Info) -> torch.Tensor:
    return torch.empty(info.shape, dtype=to_torch(info.dtype), device="meta")


def _info(size: tuple[int, ...], dtype: torch.dtype) -> Info:
    return Info(size, to_numpy(dtype))


def _of_value(value: object) -> Any:
    return _info(tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else value


def _kind(value: object) -> str:
    if not isinstance(value, Info):
        return type(value).__name__
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


class LoweredCall:
    """A call of a captured function.

    Args:
        function: the captured function.
        arguments: those of the call.
        captured: what was traced.

    Attributes:
        in_tree, out_tree: of the arguments, by position and by name, and of the result.
        out_info: the result, with a `jax.ShapeDtypeStruct` for each tensor.
    """

    def __init__(self, function: Callable[..., object], arguments: Arguments, captured: Captured):
        self._function = function
        self._names = list(arguments[1])
        leaves, self._structure = pytree.tree_flatten(arguments)
        self._infos: list[Any] = list(map(_of_value, leaves))
        results = map(self._result, captured.leaves)
        self.out_info: Any = pytree.tree_unflatten(results, captured.structure)
        self.out_tree: PyTreeDef = jax.tree.structure(self.out_info)
        self.in_tree: PyTreeDef = jax.tree.structure(arguments)

    def _result(self, leaf: object) -> object:
        if isinstance(leaf, Output):
            return _info(leaf.size, leaf.dtype)
        if isinstance(leaf, OutputView):
            return _info(leaf.view.size, leaf.output.dtype)
        if isinstance(leaf, Computed):
            return leaf.latest
        if not isinstance(leaf, Alias):
            return _of_value(leaf)
        source = leaf.source
        whole: Any = self._infos[source] if isinstance(source, int) else _of_value(source())
        return _info(leaf.view.size, to_torch(whole.dtype)) if leaf.view is not None else whole

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            TypeError: the structure, a shape or a dtype of the arguments differs from that of the lowered call.
        """
        given = {name: kwargs[name] for name in self._names if name in kwargs} | kwargs
        leaves, structure = pytree.tree_flatten((args, given))
        again = "lower it again with these arguments, or call the function itself"
        if structure != self._structure:
            raise TypeError(
                f"the program was compiled for arguments of the structure {self.in_tree}, not "
                f"{jax.tree.structure((args, kwargs))}: {again}"
            )
        names = [name for name, _ in CallArguments(leaves, structure).named_leaves(self._function)]
        for name, info, leaf in zip(names, self._infos, leaves, strict=True):
            kinds = _kind(info), _kind(_of_value(leaf))
            if kinds[0] != kinds[1]:
                raise TypeError(
                    f"the program was compiled for {kinds[0]} as `{name}`, not {kinds[1]}: {again}"
                )
        return self._function(*args, **kwargs)
