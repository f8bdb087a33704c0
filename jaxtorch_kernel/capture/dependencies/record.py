"""The result of one trace: its guards, the effects that each run repeats, and where its tensors are found."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch

from ...storage.buffer import Buffer, buffer_of
from ..errors import CaptureError, MakesParameters
from ..results import Alias
from .cells import GradCell, SlotCell, TensorCell, with_gradient
from .effects import Contained, Watched, Written, layout_of, put_contents
from .fetch import ref, strong
from .guard import Check
from .guards import Guards
from .landings import Binding, Landing
from .recorder import Recorder
from .repeats import Extend, Rebind, Refill, Reflag, again_of
from .slots import DataSlot, EndSlot, Slot
from .tokens import MISSING, is_plain
from .trees import Part, Tree, parts_of

Tensor = torch.Tensor


def _kept(path: str, file: str | None, line: int | None) -> CaptureError:
    return CaptureError(
        f"the captured code stores a tensor in `{path}`, which existed before the call",
        "Return it and store it outside, or use jit (%%jit), which stores a new one at each run.",
        file,
        line,
    )


def warn_of_a_constant(what: str, file: str, line: int) -> None:
    """Warn that the code does something that a program cannot repeat."""
    warnings.warn_explicit(
        f"captured code {what}: the current value becomes a constant of the program. Pass it as an argument.",
        UserWarning,
        file,
        line,
    )


def _values(container: Any) -> Any:
    return container.values() if isinstance(container, dict) else container


def _by_item(container: Any, before: Any, written: dict[Any, Written]) -> bool:
    """Whether the code changed a container only by assigning to items that are known (`_bind`)."""
    if isinstance(container, dict):
        keys = {**before, **container}
        if [k for k in before if k in container] != [k for k in container if k in before]:
            return False  # another order
        changed = [k for k in keys if before.get(k, MISSING) is not container.get(k, MISSING)]
        known = [[k] for k in changed]
    elif isinstance(container, list | deque) and len(container) == len(before):
        count = len(container)
        changed = [i for i in range(count) if container[i] is not before[i]]
        known = [[i, i - count] for i in changed]
    else:
        return False
    return all(any((id(container), "items", k) in written for k in keys) for keys in known)


def _appended(now: Any, before: Any) -> list[Any]:
    """What was appended to a list; a deque that was full has lost as much at its other end."""
    now, before, most = list(now), list(before), getattr(now, "maxlen", None)
    if most is None or len(now) < most:
        return now[len(before) :]
    for count in range(1, most):
        if all(a is b for a, b in zip(before[len(before) + count - most :], now, strict=False)):
            return now[most - count :]
    return now


def _same_layout(path: str, reference: weakref.ref[Tensor]) -> Check:
    """That a tensor of which the code returns a view lies in memory as it did."""

    def now() -> Any:
        tensor = reference()
        return None if tensor is None else (layout_of(tensor), tensor.requires_grad)

    before = now()
    return Check(path, "has a different memory layout", lambda: bool(now() == before))


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Hold from the trace until its program is ready; on failure, restore Python state."""
    try:
        yield
    except BaseException:
        recorder.effects.restore()
        recorder.give_gradients_back()
        raise


class Record:
    """The result of one trace, created at its end.

    Args:
        recorder: the recorder that watched the trace.
        is_traced: whether a buffer was created by the trace and has no value outside it.
        results: what the code returned (`results.py`).
        escaped: (weak reference to a buffer, its spec) of tensors computed from inputs that outlive the code.

    Raises:
        CaptureError: if the code changed Python state in a way that cannot be repeated.
    """

    def __init__(
        self,
        recorder: Recorder,
        is_traced: Callable[[Buffer], bool],
        results: Sequence[Any],
        escaped: Sequence[Any],
    ):
        self._escaped = {id(reference()) for reference, _ in escaped}
        self.again: list[Callable[[], None]] = []
        self.undo = recorder.effects.restore
        self.bindings: list[Binding] = []
        self._named: dict[int, list[Tensor]] = {}
        self._bound: dict[int, list[Callable[[], Any]]] = {}
        self.tied: list[
            tuple[int, Callable[[], Tensor | None]]
        ] = []  # arguments that must be these
        self.bare: list[int] = []  # arguments that must be leaves without gradients and hooks
        self.rebound: list[tuple[int, Slot | Part]] = []  # arguments that each run binds to places
        self._rebind = Rebind()
        self._replaced: list[Tensor] = []  # tensors in whose place each run leaves another
        self.paths: dict[int, str] = {key: path for key, (path, _) in recorder.tensors.items()}
        for _, reference in recorder.tensors.values():
            tensor = reference()
            if tensor is not None and tensor.device.type == "jax":
                self._named.setdefault(id(buffer_of(tensor)), []).append(tensor)
        for result in results:
            if isinstance(result, Alias) and isinstance(result.source, weakref.ref):
                path, _ = recorder.tensors[id(result.source())]
                recorder.checks[result] = _same_layout(path, result.source)
        for filled in recorder.effects.filled():
            self._fill(recorder, filled, is_traced)
        self.reflagged: list[
            tuple[int, bool]
        ] = []  # arguments by their place, and the flag that they get
        self.flags: dict[
            int, bool | None
        ] = {}  # what a run expects of tensors that the code changes
        for key, watched in recorder.effects.tensors.items():
            self._repeat(recorder, key, watched, is_traced)
        for written in recorder.effects.written.values():
            self._bind(recorder, written, is_traced)
        if self._rebind.pairs:
            self.again.append(self._rebind)
        for reference, gradient in recorder.gradients.values():
            leaf = reference()
            if leaf is not None and gradient is not None and gradient.device.type == "jax":
                self.reads_through(buffer_of(gradient), GradCell(leaf, gradient))
        # Of the tensors that the code read by name: path, weak reference, how it lies in memory.
        self.layouts = [
            (path, reference, layout_of(tensor))
            for path, reference in recorder.tensors.values()
            if (tensor := reference()) is not None and tensor.device.type == "jax"
        ]
        self.fresh = recorder.fresh
        # Whether it matters which of these tensors require a gradient.
        names = recorder.notes.names | recorder.notes.strings
        named = [reference for _, reference, _ in self.layouts]
        self.flagged = named if "requires_grad" in names else []
        self.differentiates = torch.is_grad_enabled() or any("grad" in name for name in names)
        # A tensor that stands elsewhere too must be the one that stands in the place now.
        self._replaced = [t for t in self._replaced if not recorder.notes.expects(t)]
        self.guards: Guards = recorder.notes.finish()
        self.modules = list(recorder.modules.values())
        for what, file, line in recorder.warned:
            warn_of_a_constant(what, file, line)

    def _repeat(
        self, recorder: Recorder, key: int, watched: Watched, is_traced: Callable[[Buffer], bool]
    ) -> None:
        """Record the effects on one tensor besides writing its values."""
        place = recorder.arguments.get(key)
        flag, moved = watched.flag(), watched.moved()
        if place is None:
            self.flags[key] = watched.requires_grad
        elif flag is not None:
            self.reflagged.append((place, flag))
        if place is None and flag is not None and (tensor := watched.tensor()) is not None:
            again = Reflag(tensor, flag)
            self.again.append(again)
            recorder.checks[again] = again.check()
        if moved is None:
            return
        if place is not None or not is_traced(buffer_of(moved)) or not watched.in_place(moved):
            raise CaptureError(
                f"the captured code changes the memory or the shape of {watched.name}",
                "A program cannot do that: write to it in place (`copy_`), or create a new tensor.",
            )
        new = moved.detach()
        watched.put_back()
        self._leave(DataSlot(moved), new, None, _kept(f"{watched.path}.data", None, None))

    def _bind(
        self, recorder: Recorder, written: Written, is_traced: Callable[[Buffer], bool]
    ) -> None:
        """Record the effect on one place."""
        slot, now = written.slot, written.slot.get()
        if recorder.notes.holds_new_parameters(now):
            raise MakesParameters(slot.path, written.file, written.line)
        before, notes = written.before, recorder.notes
        if now is before and not written.replaced:
            notes.expect_before(written)  # where it is something else, the code changes it
            return
        if self._bind_tree(recorder, written, is_traced):
            return
        on_device = isinstance(now, Tensor) and now.device.type == "jax"
        if on_device and id(now) in recorder.arguments:
            self.rebound.append((recorder.arguments[id(now)], slot))
            return
        if not on_device or (written.was_there and not is_traced(buffer_of(now))):
            if written.was_there and not is_plain(now):
                self._rebind.pairs.append((slot, ref(now)))
                return
            again = again_of(written, notes.reads(slot))
            if (
                again is None or now is MISSING or written.was_found
            ):  # deleting what is not there is an error
                notes.expect_before(written)
            if again is not None:
                self.again.append(again)
            return
        if not is_traced(buffer_of(now)):
            raise CaptureError(
                f"the captured code stores a view of an argument, or of a tensor that it reads, in `{slot.path}`",
                "Store the tensor itself, or a copy (`.clone()`).",
                written.file or None,
                written.line,
            )
        self._leave(slot, now, before, _kept(slot.path, written.file or None, written.line))
        if isinstance(before, Tensor) and before.device.type == "jax":
            self.reads_through(buffer_of(before), SlotCell(slot, before))
            self._replaced.append(before)
            recorder.notes.drop(slot)  # what stood there is an input, whatever it is

    def _bind_tree(
        self, recorder: Recorder, written: Written, is_traced: Callable[[Buffer], bool]
    ) -> bool:
        """Record the effect on one place, if the code bound a container of tensors that it created."""
        slot, before = written.slot, written.old
        found = None if written.was_there else parts_of(slot.get())
        if found is None:
            return False
        leaves, structure = found
        old = before if before is not None and before.structure == structure else None
        tree, bound, made = Tree(slot, leaves, structure), [], []
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                if not is_plain(leaf):
                    return False
                tree.given[i] = strong(leaf)
            elif id(leaf) in recorder.arguments:
                bound.append((recorder.arguments[id(leaf)], Part(tree, i)))
            elif leaf.device.type == "jax" and is_traced(buffer_of(leaf)):
                made.append((i, leaf))
            elif before is not None and (place := before.place_of(leaf)) is not None:
                tree.keep(i, place)
            else:
                return False
        if not made:
            return False
        self.rebound += bound
        refusal = _kept(slot.path, written.file or None, written.line)
        for i, leaf in made:
            if id(buffer_of(leaf)) in self._escaped:
                first = old and (t := old.tensors.get(i)) and t()
                self._bind_tensor(Part(tree, i), leaf, first, refusal)
            else:
                constant = leaf.detach().clone()
                tree.given[i] = constant.clone
        if old is not None and recorder.notes.reads(slot):
            recorder.checks[tree] = old.check(slot)
            recorder.notes.drop_tree(slot, old.containers)
            for i, reference in old.tensors.items():
                tensor = reference()
                if tensor is not None and tensor.device.type == "jax":
                    self.reads_through(buffer_of(tensor), SlotCell(Part(tree, i), tensor))
                    self._replaced.append(tensor)
        return True

    def _leave(self, slot: Any, tensor: Tensor, before: Any, refusal: CaptureError) -> None:
        """Let each run leave a tensor at a place. `refusal`: for code that may not."""
        if id(buffer_of(tensor)) in self._escaped:
            self._bind_tensor(slot, tensor, before, refusal)
        else:  # a constant
            constant = tensor.detach().clone()
            self.again.append(lambda: slot.set(constant.clone()))

    def _bind_tensor(self, slot: Any, tensor: Tensor, before: Any, refusal: CaptureError) -> None:
        """Each run binds one tensor to all places where the trace bound one."""
        for binding in self.bindings:
            if binding.tensor is tensor:
                binding.slots.append(slot)
                return
        self.bindings.append(Binding(slot, tensor, before, refusal))

    def _fill(
        self,
        recorder: Recorder,
        filled: Contained,
        is_traced: Callable[[Buffer], bool],
    ) -> None:
        """Record the effect on one container."""
        path, container, before, fetch, line = filled
        if _by_item(container, before, recorder.effects.written):
            return
        what = f"the captured code changes the contents of `{path}`, which existed before the call"
        advice = (
            f"Return the value or assign it to a variable, and change `{path}` afterwards (in a notebook, in the next "
            "cell): the Python of captured code runs only once, when it is traced."
        )
        old = {id(value) for value in _values(before)}
        new = [value for value in _values(container) if id(value) not in old]
        if any(map(recorder.notes.holds_new_parameters, new)):
            raise MakesParameters(path, *line)
        traced = [
            isinstance(v, Tensor) and v.device.type == "jax" and is_traced(buffer_of(v))
            for v in new
        ]
        held = [parts[0] for value in new if (parts := parts_of(value)) is not None]
        if any(isinstance(t, Tensor) and is_traced(buffer_of(t)) for t in chain(*held)):
            recorder.checks[id(container)] = Check(path, "has different contents", lambda: False)
            return
        in_order = isinstance(container, list | deque)
        if in_order and not recorder.notes.reads_contents(container):
            tail = _appended(container, before)
            if all(map(is_plain, tail)):
                self.again.append(Extend(fetch, tail))
                return
            if len(tail) == len(new) and all(traced):
                put_contents(container, before)
                for tensor in tail:
                    self._leave(EndSlot(fetch), tensor, None, CaptureError(what, advice, *line))
                return
        elif not any(traced) and (not in_order or len(container) == len(before)):
            self.again.append(Refill(fetch, container))
            return
        elif isinstance(container, dict) and all(traced):
            keys = [k for k, v in container.items() if id(v) not in old]
            for key in keys:
                slot = Slot.item(container, key, path, fetch)
                error = CaptureError(what, advice, *line)
                self._leave(slot, container[key], before.get(key), error)
            return
        raise CaptureError(what, advice, *line)

    def tie(self, arguments: Sequence[Any], recorder: Recorder) -> None:
        """Say what a run expects of arguments whose `.grad` the code may read.

        One without a gradient may be any leaf without one. With one, it must be that leaf: the gradient is read there.
        """
        for place, leaf in enumerate(arguments):
            if not (isinstance(leaf, Tensor) and leaf.requires_grad and leaf.is_leaf):
                continue
            _, gradient = recorder.gradients.get(id(leaf), (None, leaf.grad))
            if gradient is None:
                self.bare.append(place)
            else:
                self.tied.append((place, with_gradient(leaf)))

    def is_named(self, cell: Any) -> bool:
        """Whether the cell is that of a tensor that the code read by name."""
        return id(cell) in self._named and id(cell) not in self._bound

    def reads_through(self, cell: Any, reference: Callable[[], Any]) -> None:
        """Use this reference to find a cell at each run."""
        self._bound.setdefault(id(cell), []).append(reference)

    def all_of(self, cell: Any) -> list[Callable[[], Any]]:
        """Every way in which the code reached a cell; the first is how it is read at each run."""
        named = [
            t for t in self._named.get(id(cell), ()) if not any(t is r for r in self._replaced)
        ]
        return [*self._bound.get(id(cell), ()), *map(TensorCell, named)]

    def references(
        self, cells: Sequence[Callable[[], Any]]
    ) -> tuple[list[weakref.ref[Tensor]], list[Callable[[], Any]], list[Any]]:
        """How the captured cells are found at a run: first the tensors of those that have one, then the other cells;
        and the cells of now, in that order.

        Through its tensor, for `tensor.data = other` gives it another; through its place, where each run binds a new
        tensor.
        """
        alive = [reference() for reference in cells]
        tensors = [self._named[id(c)][0] for c in alive if self.is_named(c)]
        rest = [
            self._bound.get(id(cell), [reference])[0]
            for cell, reference in zip(alive, cells, strict=True)
            if not self.is_named(cell)
        ]
        first = [c for c in alive if self.is_named(c)] + [c for c in alive if not self.is_named(c)]
        return [weakref.ref(t) for t in tensors], rest, first

    def landings(self, trace_made: Sequence[Any]) -> list[Landing]:
        """Of the tensors that the code bound to places, given all tensors that outlive the trace."""
        cells = {id(reference()) for reference, _ in trace_made}
        return [b.landing(trace_made) for b in self.bindings if id(buffer_of(b.tensor)) in cells]

    def forget(self) -> None:
        """Drop the references to tensors."""
        self._named.clear()
        self._replaced.clear()
        self.bindings.clear()

    def module_buffers(self) -> set[int]:
        """The cells of the registered buffers of the modules that ran, by identity."""
        found = set()
        for reference in self.modules:
            module = reference()
            for buffer in module._buffers.values() if module is not None else ():
                if buffer is not None and buffer.device.type == "jax":
                    found.add(id(buffer_of(buffer)))
        return found
