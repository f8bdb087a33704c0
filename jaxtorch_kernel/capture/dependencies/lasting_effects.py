"""The effects of one trace on Python state, each in the form in which a run repeats it.

When the code has run, each of its effects falls into one of three classes. Plain values and existing objects are
assigned again by each run (`repeats.py`). A tensor that was computed from inputs is an output of the program, and each
run stores its own (`landings.py`). Anything else cannot be repeated and is refused. An argument that the code stores,
or whose `requires_grad` it sets, is noted by its index, because each run has its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain

import torch

from ...programs.trees import is_device_tensor
from ...storage.buffer import Buffer, buffer_of
from ..errors import CaptureError, MakesParameters
from ..numbers import NeedsNumber
from .buffer_refs import BufferRefs, SlotBuffer
from .effects import (
    Assignment,
    ReachedContainer,
    ReachedTensor,
    changed_values,
    set_contents,
    values_of,
)
from .fetch import fetched, strong
from .guard import Check
from .host_number import HostNumber, holds_host_number
from .landings import Binding, Escaped
from .previous import Previous
from .recorder import Recorder
from .repeats import Assign, Extend, Rebind, SetContents, SetRequiresGrad, appended, repeat_of
from .slots import DataSlot, ListEnd, Slot, Target
from .tokens import MISSING, is_plain, items_of
from .trees import Leaf, NewTree, tensor_tree

Tensor = torch.Tensor

IsTraced = Callable[[Buffer], bool]


def _stored_error(path: str, file: str | None, line: int | None) -> CaptureError:
    return CaptureError(
        f"the captured code stores a tensor in `{path}`, which existed before the call",
        "Return it and store it outside, or use jit (%%jit), which stores a new one at each run.",
        file,
        line,
    )


class LastingEffects:
    """What each run repeats of the effects of a trace.

    Args:
        recorder: the recorder that watched the trace.
        is_traced: whether a buffer was created by the trace and has no value outside it.
        escaped: the tensors computed from inputs that outlive the code.
        buffers: how each run finds the buffers that the code reached; those in slots are added.

    Attributes:
        repeats: the operations of each run on Python objects.
        released: slots whose tensor the code reads, whichever it is; the identity of that in the trace.
        previous: what a run takes from its place before it assigns anything.
        bindings: tensors that the code created and stored.
        rebound: arguments that each run binds to a slot: index, slot.
        reflagged: arguments whose `requires_grad` each run sets: index, flag.
        flags: the `requires_grad` that a run expects of tensors that the code changes, by identity.

    Raises:
        CaptureError: if the code changed Python state in a way that cannot be repeated.
    """

    def __init__(
        self,
        recorder: Recorder,
        is_traced: IsTraced,
        escaped: Sequence[Escaped],
        buffers: BufferRefs,
    ):
        self._recorder = recorder
        self._is_traced = is_traced
        self._escaped = {id(reference()) for reference, _ in escaped}
        self._buffers = buffers
        self._numbers = recorder.host_numbers
        self._rebind = Rebind()
        self.previous = Previous(recorder)
        self.released: list[tuple[Slot | Leaf, int]] = []
        self.repeats: list[Callable[[], None]] = []
        self.bindings: list[Binding] = []
        self.rebound: list[tuple[int, Slot | Leaf]] = []
        self.reflagged: list[tuple[int, bool]] = []
        self.flags: dict[int, bool | None] = {}
        if self._numbers is not None:
            self.repeats += self._numbers.finish()
        for container in recorder.effects.changed_containers():
            self._fill(container)
        for key, reached in recorder.effects.tensors.items():
            self._change_tensor(key, reached)
        for identity, assignment in recorder.effects.assignments.items():
            # The items of a container that the code has replaced since are bound with the new one.
            if fetched(assignment.slot.owner) is None or assignment.slot.identity == identity:
                self._bind(assignment)
        if self._rebind.pairs:
            self.repeats.append(self._rebind)

    def _is_traced_tensor(self, value: object) -> bool:
        return is_device_tensor(value) and self._is_traced(buffer_of(value))

    def _change_tensor(self, key: int, reached: ReachedTensor) -> None:
        """Record the effects on one tensor besides writing its values."""
        recorder = self._recorder
        index = recorder.arguments.get(key)
        flag, moved = reached.changed_flag(), reached.if_moved()
        if index is None:
            self.flags[key] = reached.requires_grad
        elif flag is not None:
            self.reflagged.append((index, flag))
        if index is None and flag is not None and (tensor := reached.tensor()) is not None:
            repeat = SetRequiresGrad(tensor, flag)
            self.repeats.append(repeat)
            recorder.checks[repeat] = repeat.check()
        if moved is None:
            return
        if (
            index is not None
            or not self._is_traced_tensor(moved)
            or not reached.has_layout_of(moved)
        ):
            raise CaptureError(
                f"the captured code changes the memory or the shape of {reached.name}",
                "A program cannot do that: write to it in place (`copy_`), or create a new tensor.",
            )
        new = moved.detach()
        reached.restore_memory()
        error = _stored_error(f"{reached.path}.data", None, None)
        self._store_each_run(DataSlot(moved), new, None, error)

    def _bind(self, assignment: Assignment) -> None:
        """Record the effect on one slot."""
        slot, before = assignment.slot, assignment.before
        now, notes = slot.get(), self._recorder.notes
        line = assignment.file or None, assignment.line
        if type(now) is HostNumber or type(before) is HostNumber:
            self._bind_number(assignment, now)
            return
        if self._numbers is not None and holds_host_number(now):
            raise NeedsNumber()
        if notes.contains_new_parameters(now):
            raise MakesParameters(slot.path, assignment.file, assignment.line)
        if is_device_tensor(now) and id(now) in self._recorder.arguments:
            # Also if it was there before: the next call may pass another tensor.
            self.rebound.append((self._recorder.arguments[id(now)], slot))
            if is_device_tensor(before) and now is not before:
                self._take_previous(slot, before, notes.drop_guards(slot))
            return
        if now is before and not assignment.replaced:
            notes.guard_previous(assignment)  # with another value, the code would change it
            return
        if self._bind_tree(assignment):
            return
        is_traced = self._is_traced_tensor(now)
        if not is_device_tensor(now) or (assignment.is_preexisting and not is_traced):
            self._rebind_object(assignment, now)
            return
        if not is_traced:
            raise CaptureError(
                f"the captured code stores a view of an argument, or of a tensor that it reads, in `{slot.path}`",
                "Store the tensor itself, or a copy (`.clone()`).",
                *line,
            )
        self._store_each_run(slot, now, before, _stored_error(slot.path, *line))
        if is_device_tensor(before):
            self._take_previous(slot, before, notes.drop_guards(slot))

    def _bind_number(self, assignment: Assignment, now: object) -> None:
        """Record the effect on a slot that has, or had, a number that varies."""
        numbers, slot = self._numbers, assignment.slot
        if type(now) is not HostNumber:
            if not is_plain(now):
                raise NeedsNumber()
            self.repeats.append(Assign(slot, now))
        elif numbers is not None and not numbers.is_root(slot):
            # `self.total += self.n` reads the previous value of a slot whose number may vary, too.
            self._recorder.notes.guard_previous(assignment)
            self.repeats.append(numbers.assign(slot, now))

    def _rebind_object(self, assignment: Assignment, now: object) -> None:
        """Record that a slot is bound to an object that is not a traced tensor."""
        slot, notes = assignment.slot, self._recorder.notes
        if assignment.is_preexisting and not is_plain(now):
            self._rebind.pairs.append((slot, self.previous.hold(now)))
            if self.previous.has(now) and is_device_tensor(assignment.before):
                self._take_previous(slot, assignment.before, notes.drop_guards(slot))
            return
        repeat = repeat_of(assignment, notes.reads(slot))
        # Deleting what does not exist is an error; so it must exist before each run.
        if repeat is None or now is MISSING or assignment.needs_previous:
            notes.guard_previous(assignment)
        if repeat is not None:
            self.repeats.append(repeat)

    def _bind_tree(self, assignment: Assignment) -> bool:
        """Record the effect on one slot, if the code bound a container of tensors that it created."""
        slot, previous = assignment.slot, assignment.tree
        current = None if assignment.is_preexisting else tensor_tree(slot.get())
        if current is None:
            return False
        leaves, structure = current
        alike = previous if previous is not None and previous.structure == structure else None
        tree = NewTree(slot, leaves, structure)
        rebound: list[tuple[int, Slot | Leaf]] = []
        traced: list[tuple[int, Tensor]] = []
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                if not is_plain(leaf):
                    return False
                tree.makers[i] = strong(leaf)
            elif id(leaf) in self._recorder.arguments:
                rebound.append((self._recorder.arguments[id(leaf)], Leaf(tree, i)))
            elif self._is_traced_tensor(leaf):
                traced.append((i, leaf))
            elif previous is not None and (index := previous.index_of(leaf)) is not None:
                tree.take_from_previous(i, index)
            elif self.previous.has(leaf):
                tree.makers[i] = self.previous.hold(leaf)
            else:
                return False
        if not traced:
            return False
        self.rebound += rebound
        error = _stored_error(slot.path, assignment.file or None, assignment.line)
        for i, leaf in traced:
            if id(buffer_of(leaf)) in self._escaped:
                before = alike and (t := alike.tensors.get(i)) and t()
                self._bind_tensor(Leaf(tree, i), leaf, before, error)
            else:
                constant = leaf.detach().clone()
                tree.makers[i] = constant.clone
        if alike is not None and self._recorder.notes.reads(slot):
            self._recorder.checks[tree] = alike.check(slot)
            self._recorder.notes.drop_tree_guards(slot, alike.containers)
            for i, reference in alike.tensors.items():
                tensor = reference()
                if is_device_tensor(tensor):
                    self._take_previous(Leaf(tree, i), tensor, True)
        return True

    def _take_previous(self, slot: Slot | Leaf, before: Tensor, is_read: bool) -> None:
        """Let each run take the tensor that is in a slot before it, whichever it is."""
        reference = SlotBuffer(slot, before)
        self._buffers.add(before, reference)
        self._buffers.replaced.append(before)
        if is_read:
            self.released.append((slot, id(before)))
            # The code may only ask whether it is None, or for its shape: then it is no input.
            what = "is no tensor like the one before"
            self._recorder.checks[reference] = Check(slot.path, what, reference.is_alike)

    def _store_each_run(
        self, target: Target, tensor: Tensor, before: object, error: CaptureError
    ) -> None:
        """Let each run store a tensor at a target. `error`: for code that must not store tensors."""
        if id(buffer_of(tensor)) in self._escaped:
            self._bind_tensor(target, tensor, before, error)
        else:  # it depends on no input: a constant
            constant = tensor.detach().clone()
            self.repeats.append(lambda: target.set(constant.clone()))

    def _bind_tensor(
        self, target: Target, tensor: Tensor, before: object, error: CaptureError
    ) -> None:
        """Let each run bind one tensor to all targets to which the trace bound one."""
        for binding in self.bindings:
            if binding.tensor is tensor:
                binding.targets.append(target)
                return
        self.bindings.append(Binding(target, tensor, before, error))

    def _fill(self, reached: ReachedContainer) -> None:
        """Record the effect on one container."""
        path, container, before, fetch, line = reached
        recorder = self._recorder
        if recorder.effects.is_assigned_by_item(container, before):  # `_bind` records these
            return
        old = {id(value) for value in values_of(before)}
        new = [value for value in values_of(container) if id(value) not in old]
        if self._numbers is not None:
            keys = container if isinstance(container, dict) else ()
            moved = changed_values(container, before)  # as `v.sort()` moves numbers that were there
            if any(map(holds_host_number, [*new, *keys, *moved])):
                self._fill_numbers(reached)
                return
        if any(map(recorder.notes.contains_new_parameters, new)):
            raise MakesParameters(path, *line)
        traced = list(map(self._is_traced_tensor, new))
        leaves = [tree[0] for value in new if (tree := tensor_tree(value)) is not None]
        if any(map(self._is_traced_tensor, chain(*leaves))):
            recorder.checks[id(container)] = Check(path, "has different contents", lambda: False)
            return
        error = CaptureError(
            f"the captured code changes the contents of `{path}`, which existed before the call",
            f"Return the value or assign it to a variable, and change `{path}` afterwards (in a notebook, in the next "
            "cell): the Python of captured code runs only once, when it is traced.",
            *line,
        )
        if isinstance(container, list | deque) and not recorder.notes.reads_contents(container):
            tail = appended(container, before)
            if all(map(is_plain, tail)):
                self.repeats.append(Extend(fetch, tail))
                return
            if len(tail) == len(new) and all(traced):
                set_contents(container, before)
                for tensor in filter(is_device_tensor, tail):
                    self._store_each_run(ListEnd(fetch), tensor, None, error)
                return
        elif any(map(self.previous.has, new)):
            pass  # each run has another tensor in its place
        elif not any(traced) and (
            not isinstance(container, list | deque) or len(container) == len(before)
        ):
            self.repeats.append(SetContents(fetch, container))
            return
        elif isinstance(container, dict) and isinstance(before, dict) and all(traced):
            for key, value in container.items():
                if id(value) not in old and is_device_tensor(value):
                    slot = Slot.item(container, key, path, fetch)
                    self._store_each_run(slot, value, before.get(key), error)
            return
        raise error

    def _fill_numbers(self, reached: ReachedContainer) -> None:
        """Record the effect on a container under whose keys the code stored numbers that vary.

        Raises:
            NeedsNumber: if it did something else, too.
        """
        container, before = reached.container, reached.before
        old: dict[object, object]
        if isinstance(container, dict) and isinstance(before, dict):
            old, now = before, dict(items_of(container))
        elif isinstance(container, list) and isinstance(before, list):
            old, now = dict(enumerate(before)), dict(enumerate(container))
        else:
            raise NeedsNumber()
        is_same_size = len(now) == len(old) or isinstance(container, dict)
        if not (is_same_size and now.keys() >= old.keys()) or HostNumber in map(type, now):
            raise NeedsNumber()
        for key, value in now.items():
            if value is not old.get(key, MISSING):
                slot = Slot.item(container, key, f"{reached.path}[{key!r}]", reached.fetch)
                self._bind_number(Assignment(slot, old.get(key, MISSING)), value)
