"""The result of one trace: its guards, the effects that each run repeats, and where its tensors are found."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch

from ...programs.trees import is_device_tensor
from ...storage.buffer import buffer_of
from ..errors import warn_of_constant
from ..results import Alias
from .buffer_refs import BufferRefs, GradBuffer, leaf_with_gradient
from .effects import layout_of
from .guard import Check
from .guards import Guards
from .landings import Escaped, Landing
from .lasting_effects import IsTraced, LastingEffects
from .previous import Previous, release
from .recorder import Recorder
from .slots import Slot
from .trees import Leaf

Tensor = torch.Tensor


def _layout_check(path: str, fetch: Callable[[], object], tensor: object) -> Check:
    """A check that there is a tensor of the same memory layout, for tensors whose views the code returns."""

    def look(value: object) -> object:
        return (layout_of(value), value.requires_grad) if isinstance(value, Tensor) else None

    before = look(tensor)
    return Check(path, "has a different memory layout", lambda: look(fetch()) == before)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Hold from the trace until its program is ready; on failure, restore Python state."""
    try:
        yield
    except BaseException:
        recorder.effects.restore()
        recorder.restore_gradients()
        if (numbers := recorder.host_numbers) is not None:
            numbers.start_over()  # a step may be traced once more, with its learning rate as a number
        raise


class Record:
    """The result of one trace, created at its end.

    Args:
        recorder: the recorder that watched the trace.
        is_traced, escaped: as for `LastingEffects`.
        results: what the code returned (`results.py`).

    Attributes:
        repeats, held, bindings, rebound, reflagged, flags: those of `LastingEffects`.
        undo: restores Python state from before the trace.
        tied: arguments that must be the same leaf as in the trace: index, reference.
        bare: indices of arguments that must be leaves without gradients and hooks.
        paths: of the tensors that the code read by name, by identity.
        layouts: of the device's tensors among them: path, weak reference, memory layout.
        buffers: how each run finds the buffers that the code reached.
        labels: the names of what the code read.
        host_numbers: the numbers of the user's objects that vary, if any do.
        flagged: the tensors whose `requires_grad` the code may ask for.
        differentiates: whether it matters which tensors require a gradient.

    Raises:
        CaptureError: if the code changed Python state in a way that cannot be repeated.
    """

    def __init__(
        self,
        recorder: Recorder,
        is_traced: IsTraced,
        results: list[object],
        escaped: Sequence[Escaped],
    ):
        self._recorder = recorder
        self.undo = recorder.effects.restore
        self.tied: list[tuple[int, Callable[[], Tensor | None]]] = []
        self.bare: list[int] = []
        self.paths = {key: path for key, (path, _) in recorder.tensors.items()}
        self.labels, self.function = recorder.notes.labels, recorder.function
        self.buffers = BufferRefs(self._named_tensors())
        self.host_numbers = recorder.host_numbers
        effects = LastingEffects(recorder, is_traced, escaped, self.buffers)
        self.repeats, self.bindings, self.held = (
            effects.repeats,
            effects.bindings,
            effects.previous.held,
        )
        self._check_results(results, effects.previous)
        if self.held:
            self.repeats.append(partial(release, self.held))
        self.rebound, self.reflagged, self.flags = effects.rebound, effects.reflagged, effects.flags
        self._add_gradients()
        if self.host_numbers is not None:
            recorder.checks.update((check, check) for check in self.host_numbers.checks)
        self.layouts = [
            (self.paths[id(tensor)], weakref.ref(tensor), layout_of(tensor))
            for tensor in self._named_tensors()
        ]
        names = recorder.notes.names | recorder.notes.strings
        references = [reference for _, reference, _ in self.layouts]
        self.flagged = references if "requires_grad" in names else []
        self.differentiates = torch.is_grad_enabled() or any("grad" in name for name in names)
        # A tensor that is also guarded elsewhere must be the one that is in its slot now.
        guarded = recorder.notes.guarded_tensors()
        for held in self.held:
            path, _ = recorder.tensors.get(id(held()), ("a tensor", None))
            if (check := held.check(path, id(held()) in guarded)) is not None:
                recorder.checks[held] = check
        returned = {r.source for r in results if isinstance(r, Alias) and isinstance(r.source, int)}
        self._check_identities(effects.released, guarded)
        self._tie_known(returned | {index for index, _ in self.rebound})
        replaced = self.buffers.replaced
        replaced[:] = [t for t in replaced if id(t) not in guarded]
        self.guards: Guards = recorder.notes.build_guards()
        self.modules = list(recorder.modules.values())
        for what, file, line in recorder.warned:
            warn_of_constant(what, file, line)
        del self._recorder

    def _named_tensors(self) -> Iterator[Tensor]:
        """The tensors of the device that the code read by name."""
        for _, reference in self._recorder.tensors.values():
            tensor = reference()
            if is_device_tensor(tensor):
                yield tensor

    def _check_results(self, results: list[object], previous: Previous) -> None:
        """Let each run find the tensors from before it that the code returned; they must have the same layout."""
        for i, result in enumerate(results):
            if isinstance(result, Alias) and isinstance(result.source, weakref.ref):
                tensor = result.source()
                fetch: Callable[[], object] = result.source
                if previous.has(tensor):
                    held = previous.hold(tensor)
                    results[i], fetch = result._replace(source=held), held.fetch
                path, _ = self._recorder.tensors[id(tensor)]
                self._recorder.checks[result] = _layout_check(path, fetch, tensor)

    def _check_identities(self, released: list[tuple[Slot | Leaf, int]], guarded: set[int]) -> None:
        """Require what code may compare of these slots: which hold one tensor, and which a tensor that has a guard."""
        if not released:
            return

        def pattern(tensors: list[int]) -> list[int]:
            first: dict[int, int] = {}
            return [t if t in guarded else first.setdefault(t, i) for i, t in enumerate(tensors)]

        before = pattern([identity for _, identity in released])
        slots = [slot for slot, _ in released]
        self._recorder.checks[pattern] = Check(
            slots[0].path,
            "is the same tensor as another, or no longer the same",
            lambda: pattern([id(slot.get()) for slot in slots]) == before,
        )

    def _tie_known(self, indices: set[int]) -> None:
        """Tie those arguments, which the code stored or returned, that it may have read by a name from outside too."""
        recorder = self._recorder
        for key, index in recorder.arguments.items():
            if index in indices and key in recorder.tensors:
                _, reference = recorder.tensors[key]
                self.tied.append((index, reference))

    def _add_gradients(self) -> None:
        """Find the gradients of leaves through the leaves."""
        for reference, gradient in self._recorder.gradients.values():
            leaf = reference()
            if leaf is not None and gradient is not None and is_device_tensor(gradient):
                self.buffers.add(gradient, GradBuffer(leaf, gradient))

    def tie(self, arguments: Sequence[object], recorder: Recorder) -> None:
        """Record what a run expects of arguments whose `.grad` the code may read.

        One without a gradient may be any leaf without one. With a gradient it must be the same leaf, because the
        gradient is read there.
        """
        for index, leaf in enumerate(arguments):
            if not (isinstance(leaf, Tensor) and leaf.requires_grad and leaf.is_leaf):
                continue
            _, gradient = recorder.gradients.get(id(leaf), (None, leaf.grad))
            if gradient is None:
                self.bare.append(index)
                continue
            self.tied.append((index, leaf_with_gradient(leaf)))
            if is_device_tensor(gradient):
                self.buffers.add(gradient, GradBuffer(leaf, gradient))

    def landings(self, escaped: Sequence[Escaped]) -> list[Landing]:
        """For the tensors that the code stored, given all tensors that outlive the trace."""
        buffers = {id(reference()) for reference, _ in escaped}
        return [b.landing(escaped) for b in self.bindings if id(buffer_of(b.tensor)) in buffers]

    def forget(self) -> None:
        """Drop the references to tensors."""
        self.buffers.forget()
        self.bindings.clear()

    def module_buffers(self) -> set[int]:
        """The buffers of the registered buffers of the modules that ran, by identity."""
        buffers = set()
        for reference in self.modules:
            module = reference()
            for buffer in module._buffers.values() if module is not None else ():
                if is_device_tensor(buffer):
                    buffers.add(id(buffer_of(buffer)))
        return buffers
