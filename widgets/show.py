"""`%jax show`: a value as a collapsible tree, drawn by treescope, with details of its tensors.

treescope draws modules, containers and JAX's arrays. Its own drawing of torch tensors assumes that every tensor is on
one device (and uses `Tensor.names`, which newer versions of torch do not have), so tensors are drawn here: dtype and
shape, the values' statistics, placement and memory on one line, the values below.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property, partial
from html import escape
from typing import TYPE_CHECKING

import jax
import numpy as np
import torch

from jaxtorch.base.torch_private import pytree
from jaxtorch.insight.sharding import sharding_of
from jaxtorch.storage.buffer import buffer_of
from jaxtorch.storage.layout import covers_buffer

from .saved import fitting, start_of
from .units import counted, size
from .view import View

if TYPE_CHECKING:
    from treescope.renderers import TreescopeRenderer, TreescopeSubtreeRenderer
    from treescope.rendering_parts import RenderableAndLineAnnotations

# Elements of a tensor that are copied from the device for its statistics and values.
MOST_READ = 1 << 20
_MOST_VALUES = 16  # tensors in a tree that shows their values, and not only what describes them
_PLACE = "</treescope-container>"
_PLAIN = (
    "margin:0;font:12px/1.4 ui-monospace,Menlo,Consolas,monospace;white-space:pre;overflow-x:auto"
)
# treescope's colours are for white paper. Where the page is dark (JupyterLab, VS Code, Colab), they are inverted.
_PAPER = "background:#fff;color:#000;padding:4px 8px;overflow-x:auto"
_DARK = (
    'body[data-jp-theme-light="false"] .jaxtorch-tree,body.vscode-dark .jaxtorch-tree,html[theme="dark"] .jaxtorch-tree'
    "{filter:invert(.93) hue-rotate(180deg)}"
)
_MOST_PICTURES = 4  # tensors in a tree that draws them as pictures, of up to 10 kB each


class ShowView(View):
    """A value, drawn as a tree.

    Raises:
        ImportError: treescope is not installed.
    """

    def __init__(self, value: object):
        import treescope  # noqa: F401

        self.value = value

    def text(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        import treescope

        values = len(_tensors(self.value)) <= _MOST_VALUES
        with self._settings(values, pictures=False):
            return f"{self._title()}{treescope.render_to_text(self.value, ignore_exceptions=True)}"

    def html(self) -> str:
        title = self._title().strip()
        count = len(_tensors(self.value))
        rooms: list[tuple[bool, bool] | None] = [(False, False), None]
        if count <= _MOST_VALUES:
            rooms.insert(0, (True, False))
        if count <= _MOST_PICTURES:
            rooms.insert(0, (True, True))
        return (f'<p style="margin:4px 0">{title}</p>' if title else "") + fitting(
            self._tree, rooms
        )

    def _tree(self, room: tuple[bool, bool] | None) -> str:
        """The tree with or without the values of tensors and their pictures; as plain text if there is no room at all.

        treescope draws by a script, which then hides the start of the text that is in its place. A page without
        scripts (GitHub, or a notebook that is not trusted) keeps showing that text.
        """
        import treescope

        plain = f'<pre style="{_PLAIN}">{escape(start_of(self.text()))}</pre>'
        if room is None:
            return plain
        with self._settings(*room):
            tree = treescope.render_to_html(self.value, ignore_exceptions=True)
        tree = tree.replace(_PLACE, plain + _PLACE, 1)
        return f'<style>{_DARK}</style><div class="jaxtorch-tree" style="{_PAPER}">{tree}</div>'

    def _settings(self, values: bool, pictures: bool) -> ExitStack:
        """treescope's settings for a drawing, until the scope is closed."""
        import treescope

        visualizer = treescope.ArrayAutovisualizer()

        def picture(value: object, path: str | None) -> object:
            if not isinstance(value, np.ndarray | jax.Array) or not value.size:
                return None
            return visualizer(value, path) if value.dtype.kind in "fiub" else None

        handler = partial(_drawn, values)
        renderer: TreescopeRenderer = treescope.active_renderer.get()
        scope = ExitStack()
        scope.enter_context(
            treescope.active_renderer.set_scoped(renderer.extended_with(handlers=[handler]))
        )
        scope.enter_context(
            treescope.active_autovisualizer.set_scoped(picture if pictures else None)
        )
        return scope

    def _title(self) -> str:
        """A line above the tree of a module: its number of parameters and its memory."""
        if not isinstance(self.value, torch.nn.Module):
            return ""
        tensors = {id(t): t for t in _tensors(self.value)}.values()
        devices = ", ".join(dict.fromkeys(str(t.device) for t in tensors))
        elements = counted(sum(t.numel() for t in self.value.parameters()), "parameter")
        return f"{elements}, {size(sum(t.nbytes for t in tensors))} on {devices or 'no device'}\n"


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.nn.Module):
        return [*value.parameters(), *value.buffers()]
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def _drawn(
    with_values: bool,
    node: object,
    path: str | None,
    subtree_renderer: TreescopeSubtreeRenderer,
) -> RenderableAndLineAnnotations:
    """A tensor as a node of the tree: a handler of treescope's. The path of the whole value is ""."""
    if not isinstance(node, torch.Tensor) or node.device.type == "meta":
        return NotImplemented
    from treescope import rendering_parts as parts

    values = _values(node)
    children = [
        parts.siblings_with_annotations(f"{name}=", subtree_renderer(child, path=None))
        for name, child in _children(node, values if with_values else None).items()
    ]
    return parts.build_custom_foldable_tree_node(
        label=parts.text(describe(node, values)),
        contents=parts.fold_condition(expanded=parts.indented_children(children)),
        path=path,
        expand_state=parts.ExpandState.COLLAPSED if path else parts.ExpandState.EXPANDED,
    )


def describe(tensor: torch.Tensor, values: np.ndarray | None) -> str:
    """A tensor on one line: type, dtype, shape, statistics, memory and placement."""
    kind = "Parameter" if isinstance(tensor, torch.nn.Parameter) else "tensor"
    dtype = str(tensor.dtype).removeprefix("torch.")
    facts = [f"{kind} {dtype}{list(tensor.shape)}", _statistics(values), size(tensor.nbytes)]
    facts.append(placement(tensor))
    if tensor.requires_grad and kind == "tensor":
        facts.append("requires grad")
    return ", ".join(fact for fact in facts if fact)


def placement(tensor: torch.Tensor) -> str:
    """The device of a tensor, and its sharding if it is on several."""
    if tensor.device.type != "jax":
        return str(tensor.device)
    drawing = sharding_of(tensor)
    ids = {device for row in drawing.parts for part in row for device in part}
    if len(ids) <= 1:
        return str(tensor.device)
    mesh = ", ".join(f"{name} {count}" for name, count in drawing.mesh)
    return f"{drawing.spec} over {len(ids)} devices" + (f" ({mesh})" if mesh else "")


def _children(tensor: torch.Tensor, values: np.ndarray | None) -> dict[str, object]:
    children: dict[str, object] = {}
    if values is not None:
        children["values"] = values
    if tensor.device.type == "jax" and not covers_buffer(tensor):
        children["memory"] = f"a view: keeps {size(buffer_of(tensor).spec.nbytes)} alive"
    if tensor.is_leaf and tensor.grad is not None:
        children["grad"] = tensor.grad
    return children


def _values(tensor: torch.Tensor) -> np.ndarray | None:
    """The values of a tensor that is not too large to copy."""
    if tensor.numel() > MOST_READ or tensor.is_sparse or tensor.is_quantized:
        return None
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.dtype.is_floating_point and tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.float()
    return tensor.numpy()


def _statistics(values: np.ndarray | None) -> str:
    if values is None or not values.size or values.dtype.kind == "c":
        return ""
    if values.dtype.kind == "b":
        return f"{int(values.sum()):,} of {values.size:,} true"
    finite = values[np.isfinite(values)]
    odd = values.size - finite.size
    notes = [f"{odd:,} not finite"] if odd else []
    if finite.size:
        extent = f"{finite.min():.3g} to {finite.max():.3g}"
        if values.dtype.kind == "f" and finite.size > 1:
            wide = finite.astype(np.float64)
            extent = f"{wide.mean():.3g} ± {wide.std():.3g} ({extent})"
        notes.insert(0, extent)
    return ", ".join(notes)
