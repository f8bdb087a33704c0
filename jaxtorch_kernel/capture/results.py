"""The results of captured code, and how each run returns them.

Each leaf of the result is one of four kinds:

Output      a tensor that the program computes
OutputView  a view of an output, if the code returned several views of one storage (`return y, y[:2]`)
Alias       a tensor that the caller already has, or a view of it (`return x.T`): not an output of the program
value       anything else, returned unchanged

A write to a tensor that eager code returns is visible in the tensors that it shares memory with. To keep that, each run
recreates views with `as_strided`, which torch's autograd differentiates like the original view.
"""

from __future__ import annotations

import itertools
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..programs.tracing import Trace
from ..programs.trees import is_device_tensor
from ..storage.buffer import buffer_of
from ..storage.layout import covers_buffer

Tensor = torch.Tensor


def as_class(tensor: Tensor, cls: type[Tensor]) -> Tensor:
    """The tensor as an instance of `cls`, a subclass of Tensor or Tensor itself."""
    return tensor if type(tensor) is cls else tensor.as_subclass(cls)


@dataclass
class Output:
    """A tensor that the code returned."""

    size: tuple[int, ...]
    dtype: torch.dtype
    differentiable: bool
    position: int = 0  # among the outputs that are differentiable, or among those that are not
    cls: type[Tensor] = Tensor  # the subclass that the code returned


class ViewLayout(NamedTuple):
    """The layout of a tensor in the memory of another one."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    detached: bool
    cls: type[Tensor]

    def of(self, tensor: Tensor) -> Tensor:
        """The view of a tensor."""
        tensor = tensor.detach() if self.detached else tensor
        return as_class(tensor.as_strided(self.size, self.stride, self.offset), self.cls)


class OutputView(NamedTuple):
    """A view of an output."""

    output: Output
    view: ViewLayout


class Alias(NamedTuple):
    """A tensor that existed before the code ran, or a view of it.

    Attributes:
        source: its index among the leaves of the call, or a reference.
        view: None for the tensor itself.
    """

    source: int | Callable[[], object]
    view: ViewLayout | None

    def of(self, leaves: Sequence[object]) -> Tensor:
        """The tensor, given the leaves of a call."""
        source = leaves[self.source] if isinstance(self.source, int) else self.source()
        assert isinstance(source, Tensor)  # a guard of the program keeps it alive
        return source if self.view is None else self.view.of(source)


class Known(NamedTuple):
    """A tensor that the caller has.

    Attributes:
        tensor: as the code saw it.
        source: for an `Alias`.
        copied: the code saw a copy of it, so a view of that copy is not a view of the caller's tensor.
    """

    tensor: Tensor
    source: int | weakref.ref[Tensor]
    copied: bool = False


class Results:
    """The classified results of the code. Created at the end of a trace.

    Args:
        leaves: the leaves of what it returned.
        trace: the trace.
        known: tensors that the caller has.

    Attributes:
        leaves: one for each leaf: an Output, an OutputView, an Alias or the value itself.
        differentiable, others: the tensors of the outputs, each in the order of its positions.
    """

    def __init__(self, leaves: Sequence[object], trace: Trace, known: Iterable[Known]):
        self.differentiable: list[Tensor] = []
        self.others: list[Tensor] = []
        self._outputs: dict[int, Output] = {}  # by the identity of the tensor
        self._sharing: dict[int, list[Tensor]] = defaultdict(list)  # by the identity of the buffer
        self._known: dict[int, list[Known]] = defaultdict(list)
        for entry in known:
            self._known[id(buffer_of(entry.tensor))].append(entry)
        for leaf in leaves:
            if is_device_tensor(leaf):
                self._sharing[id(buffer_of(leaf))].append(leaf)
        self.leaves: list[object] = [
            self._leaf(leaf, trace) if is_device_tensor(leaf) else leaf for leaf in leaves
        ]

    def _leaf(self, leaf: Tensor, trace: Trace) -> Output | OutputView | Alias:
        buffer = buffer_of(leaf)
        if not trace.created(buffer):
            return self._alias(leaf) or self._output(leaf)
        for other in self._bases(leaf):
            if (view := _view(leaf, other)) is not None:
                return OutputView(self._output(other), view)
        return self._output(leaf)

    def _alias(self, leaf: Tensor) -> Alias | None:
        known = self._known.get(id(buffer_of(leaf)), ())
        for tensor, source, _ in known:
            if tensor is leaf:
                return Alias(source, None)
        for tensor, source, copied in known:
            if not copied and (view := _view(leaf, tensor)) is not None:
                return Alias(source, view)
        return None

    def _bases(self, leaf: Tensor) -> list[Tensor]:
        """Tensors that cover all of the leaf's memory, if other results share it.

        If the leaf covers it too, only those before it: the first of all is an output, and the others are its views.
        """
        sharing = self._sharing[id(buffer_of(leaf))]
        if all(other is leaf for other in sharing):
            return []
        bases = [*(t._base for t in sharing if t._base is not None), *sharing]
        bases.sort(key=lambda t: not t.requires_grad)  # a tensor is no view of its `detach()`
        return list(itertools.takewhile(lambda t: t is not leaf, filter(_is_whole, bases)))

    def _output(self, tensor: Tensor) -> Output:
        output = self._outputs.get(id(tensor))
        if output is None:
            kind = self.differentiable if tensor.requires_grad else self.others
            size, dtype = tuple(tensor.shape), tensor.dtype
            output = Output(size, dtype, tensor.requires_grad, len(kind), _class_of(tensor))
            kind.append(tensor)
            self._outputs[id(tensor)] = output
        return output


def _class_of(tensor: Tensor) -> type[Tensor]:
    """The class of the tensor that the caller gets."""
    return Tensor if isinstance(tensor, torch.nn.Parameter) else type(tensor)


def _is_whole(tensor: Tensor) -> bool:
    return covers_buffer(tensor) and tensor.is_contiguous()


def _view(leaf: Tensor, base: Tensor) -> ViewLayout | None:
    """The view of `base` that equals `leaf`; None if gradients or values of `leaf` differ from those of any view."""
    if (
        leaf.dtype != base.dtype
        or leaf.is_conj() != base.is_conj()
        or leaf.is_neg() != base.is_neg()
    ):
        return None
    if leaf.requires_grad and (leaf._backward_hooks or not _leads_by_views(leaf, base)):
        return None
    detached = base.requires_grad and not leaf.requires_grad
    offset = int(leaf.storage_offset())
    return ViewLayout(tuple(leaf.shape), leaf.stride(), offset, detached, _class_of(leaf))


_VIEWS: tuple[str, ...] = (
    "Alias",
    "AsStrided",
    "Diagonal",
    "Expand",
    "Permute",
    "ReshapeAlias",
    "Select",
    "Slice",
    "Split",
    "SplitWithSizes",
    "Squeeze",
    "T",
    "Transpose",
    "Unbind",
    "Unfold",
    "Unsqueeze",
    "View",
)


def _leads_by_views(leaf: Tensor, base: Tensor) -> bool:
    """Whether gradients flow from `leaf` to `base` through views only: a user `Function` may return a view too."""
    if not base.requires_grad:
        return False
    node = leaf.grad_fn
    while node is not None:
        if node is base.grad_fn or getattr(node, "variable", None) is base:
            return True
        name = type(node).__name__.rstrip("0123456789").removesuffix("Backward")
        if name not in _VIEWS or len(node.next_functions) != 1:
            return False
        node = node.next_functions[0][0]
    return False
