"""Records what traced code reads, besides tensor data, while it runs.

A profile hook of this thread is called for each Python function that the code enters. For user code, and for libraries
built on torch (`followed.py`), the bytecode shows what a function reads (`reads.py`): globals, closure variables,
attributes of its arguments. These are looked up immediately, before the function runs (`chains.py`), so that the
recorded values are those that the function is about to read. Each becomes a guard (`steps.py`, `notes.py`). An object
that a function uses in any other way counts as read in full (`values.py`).

A few functions of torch act on user objects in ways that no followed bytecode shows: a module is called, one of its
attributes is set, an optimizer steps. Each of them has a handler here, which receives the frame.

The hook is off while an operator of the device runs (`pausing.py`).
"""

from __future__ import annotations

import copy
import copyreg
import os
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch

from ...base.torch_private import pytree
from ...dispatch import pausing
from ...programs import tracing
from ...programs.site import is_user_file
from ..errors import CaptureError, MakesParameters
from ..modes import Modes
from . import boundary, open_recorders, outside
from .chains import Chains
from .closures import Closures
from .discarded import Discarded
from .excluded import NOTHING
from .fetch import contents_of, ref, strong
from .followed import Owner, codes_of_callbacks, owner_of
from .frames import OPTIMIZER, READ_ALL, READ_STATE, increments, is_own, user_frame, user_line
from .fresh_objects import FreshObjects
from .gradients import Gradients
from .host_number import HostNumber
from .host_numbers import host_numbers
from .interludes import FIND_AND_LOAD, Interludes
from .modules import Modules
from .notes import Notes
from .slots import Slot
from .values import Values

Tensor = torch.Tensor

_FUNCTIONAL = torch.nn.functional.__file__  # its functions wrap functions in C that draw
# What reads attributes by a name, which no bytecode shows.
_BY_NAME = frozenset({"getattr", "vars", "__getattribute__"})
# Makes the object that `copy.copy` and `copy.deepcopy` then fill, without `__init__`.
_NEW_OBJECT: types.CodeType = copyreg.__newobj__.__code__  # type: ignore[attr-defined]  # the stubs lack it
_NEW_PARAMETER = torch.nn.Parameter.__new__.__code__


class Draw(NamedTuple):
    """A call that draws random numbers, on the device or on the CPU.

    Attributes:
        name: of the function.
        file, line: of the user code that runs.
        by_user: whether that code made the call itself.
    """

    name: str
    file: str
    line: int
    by_user: bool


class Recorder:
    """Notes what code reads; `Notes.build_guards` makes the guards of it.

    Args:
        function: the function to trace. If it has an attribute `excluded`, these values are not dependencies.

    Attributes:
        notes: the notes of the trace.
        draws: the calls that drew random numbers.
        fresh: results other than tensors that the code created.
        host_numbers: the numbers of the user's objects that vary, if any do.
        effects, checks, warned, arguments, tensors, modules, optimizers, gradients: of the notes.
    """

    def __init__(self, function: Callable[..., object]):
        self.function = function
        self.notes = notes = Notes(getattr(function, "excluded", NOTHING))
        self._closures = Closures()
        self._values = Values(notes)
        self._modules = Modules(self._values)
        self._chains = Chains(self._values, self._closures)
        self._gradients = Gradients(notes)
        self._discarded = Discarded()
        self._interludes = Interludes()
        self.draws: list[Draw] = []
        # The optimizers whose state the code got from a method of theirs, and whether it reads attributes by name, of
        # which no guard knows.
        self._asked: set[int] = set()
        self._asks_by_name = False
        self.fresh: FreshObjects | None = None
        numbers = host_numbers()
        self.host_numbers = None if numbers is None else numbers.claim()
        self._chains.has_numbers = numbers is not None
        self.effects, self.checks, self.warned = notes.effects, notes.checks, notes.warned
        self.arguments, self.tensors = notes.arguments, notes.tensors
        self.modules, self.optimizers = notes.modules, notes.optimizers
        self.gradients = notes.gradients

    def run(self, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Call the function and record what it reads."""
        notes = self.notes
        self._gradients.trace = tracing.current()
        self._add_function()
        self._add_arguments(pytree.tree_leaves((args, kwargs)))
        modes = Modes()
        before = pytree.tree_flatten((args, kwargs))
        with self.watching(), self._discarded.watched():
            result = self.function(*args, **kwargs)
        boundary.check_arguments(before, pytree.tree_flatten((args, kwargs)))
        for what in modes.restore():
            raise CaptureError(
                f"the captured code changes {what}", "Change it outside the captured code."
            )
        self.effects.compare_snapshots(notes.mentions)
        self._values.read_deferred()
        self.fresh = boundary.fresh_results(pytree.tree_leaves(result), notes)
        notes.release()
        self._gradients.accept_other_threads()
        return result if self.host_numbers is None else self.host_numbers.returned(result)

    def _add_function(self) -> None:
        code = getattr(self.function, "__code__", None)
        if code is not None and is_user_file(code.co_filename):
            self._values.add_function(self.function)
        else:  # a partial or another object, which may change
            self._values.use("the function", self.function, ref(self.function))

    def _add_arguments(self, leaves: list[object]) -> None:
        notes = self.notes
        for index, leaf in enumerate(leaves):
            if type(leaf) is HostNumber:
                continue
            if not isinstance(leaf, Tensor):
                notes.objects.add_preexisting(leaf, "")
                notes.add_texts(leaf)
                self._values.use("an argument", leaf, ref(leaf))
            else:  # an input: the key of the call has its properties
                notes.arguments[id(leaf)] = index
                notes.effects.add_tensor("", leaf)
                self._values.defer_tensor_attributes("an argument", leaf)
        notes.objects.add_preexisting(getattr(self.function, "__self__", None), "")

    # -- the hook -------------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record what the code inside reads."""
        recorders = open_recorders.of_thread.recorders
        recorders.append(self)
        _forget_callbacks()
        try:
            with pausing.profiling(self._event):
                yield
        finally:
            self._interludes.end()
            recorders.remove(self)

    def _event(self, frame: types.FrameType, event: str, arg: object) -> None:
        if self._interludes.frame is not None:
            self._interludes.note(frame, event)
        elif event == "call":
            code = frame.f_code
            handler = _HANDLERS.get(code)
            if handler is None:
                handler = _HANDLERS[code] = _handler(frame)
            if handler is not _ignore:
                handler(self, frame)
        elif event == "c_call":
            name = getattr(arg, "__name__", "")
            if name in outside.DRAWS:
                self._add_draw(name, frame)
            if name in _BY_NAME and is_user_file(frame.f_code.co_filename):
                self._asks_by_name = True
            what = outside.unrepeatable_call(arg, frame)
            if what is not None and (caller := user_frame(frame)) is not None:
                self.notes.warn(what, caller.f_code.co_filename, caller.f_lineno)
        elif event == "return" and frame.f_code is _NEW_PARAMETER and isinstance(arg, Tensor):
            self.notes.parameters.append(weakref.ref(arg))
        elif event == "return" and frame.f_code is _NEW_OBJECT:
            self.notes.objects.add_created(arg)

    def _add_draw(self, name: str, frame: types.FrameType | None) -> None:
        while frame is not None and frame.f_code.co_filename == _FUNCTIONAL:
            frame = frame.f_back
        caller = user_frame(frame)
        if caller is not None:
            file, line = caller.f_code.co_filename, caller.f_lineno
            self.draws.append(Draw(f"torch.{name}", file, line, by_user=caller is frame))

    # -- handlers of frames ---------------------------------------------------------------------------------------

    def enter_user(self, frame: types.FrameType) -> None:
        """A user function is entered."""
        self._chains.enter(frame, True)

    def enter_library(self, frame: types.FrameType) -> None:
        """A library function, whose own code does not change, is entered."""
        if not open_recorders.of_thread.users_only:
            self._chains.enter(frame, False)

    def enter_getattr(self, frame: types.FrameType) -> None:
        """`Module.__getattr__`: a parameter, buffer or submodule is read by name."""
        variables = frame.f_locals
        module, name = variables["self"], variables["name"]
        if not self.notes.objects.is_created(module):
            self._values.module_entry(
                module, name, f"{self.notes.objects.module_path(module)}.{name}"
            )

    def enter_module(self, frame: types.FrameType) -> None:
        """A module is called."""
        module = frame.f_locals["self"]
        if not self.notes.objects.is_created(module):
            self._modules.enter_call(module)

    def enter_setattr(self, frame: types.FrameType) -> None:
        """`Module.__setattr__`, by an assignment or by `setattr`."""
        variables = frame.f_locals
        module, name = variables["self"], variables["name"]
        if not self.notes.objects.is_created(module):
            self._refuse_new_parameters(frame, module, name, variables["value"])
            if id(module) in self.modules or self.notes.objects.is_preexisting(module):
                slot = Slot.attribute(
                    module, name, f"{self.notes.objects.module_path(module)}.{name}"
                )
                # The code that increments a counter has noted it as one, when it was entered.
                if not (self.effects.is_counter(slot) and increments(frame.f_back, name)):
                    self.effects.store_unnamed(slot)

    def enter_register(self, frame: types.FrameType) -> None:
        """`Module.register_parameter`, `Module.add_module`: also by a list of modules to which the code appends."""
        module, name, value = list(frame.f_locals.values())[:3]
        if not self.notes.objects.is_created(module):
            self._refuse_new_parameters(frame, module, name, value)

    def enter_hook(self, frame: types.FrameType) -> None:
        """`RemovableHandle.__init__`: the code is about to add a hook to a table."""
        self._modules.enter_registration(frame.f_locals["hooks_dict"])

    def enter_init(self, frame: types.FrameType) -> None:
        """`Module.__init__`: the code creates a module."""
        self.notes.objects.add_created(frame.f_locals["self"])

    def enter_lazy(self, frame: types.FrameType) -> None:
        """A lazy module is called for the first time."""
        raise MakesParameters(self.notes.objects.module_path(frame.f_locals["self"]))

    def _refuse_new_parameters(
        self, frame: types.FrameType, module: torch.nn.Module, name: str, value: object
    ) -> None:
        if self.notes.contains_new_parameters(value):
            path = f"{self.notes.objects.module_path(module)}.{name}"
            raise MakesParameters(path, *user_line(frame))

    def enter_train(self, frame: types.FrameType) -> None:
        """`module.train()` and `module.eval()`: the code may change the mode."""
        for module in frame.f_locals["self"].modules():
            if not self.notes.objects.is_created(module):
                path = f"{self.notes.objects.module_path(module)}.training"
                self.effects.store(Slot.attribute(module, "training", path), None, "")

    def enter_optimizer(self, frame: types.FrameType) -> None:
        """An optimizer is used."""
        self.uses(frame.f_locals["self"])

    def enter_state(self, frame: types.FrameType) -> None:
        """A method that reads all state of an optimizer."""
        self._asked.add(id(frame.f_locals["self"]))

    def enter_whole_module(self, frame: types.FrameType) -> None:
        """A method that reads all parts of a module."""
        module = frame.f_locals.get("self")
        caller = frame.f_back
        while caller is not None and caller.f_code in READ_ALL:
            caller = caller.f_back
        internal = caller is not None and is_own(caller)
        if internal or not isinstance(module, torch.nn.Module):
            return
        if not self.notes.objects.is_created(module):
            self._modules.read_whole(module)

    def enter_copy(self, frame: types.FrameType) -> None:
        """`copy.copy` or `copy.deepcopy` of an object: the copy of a module has its hooks, too."""
        original = frame.f_locals["x"]
        if isinstance(original, torch.nn.Module) and not self.notes.objects.is_created(original):
            self._modules.read_as_called(original)

    def enter_environ(self, frame: types.FrameType) -> None:
        """`os.environ[...]`."""
        variables = frame.f_locals
        environ, name = variables["self"], variables["key"]
        key = environ.encodekey(name)
        self._values.item(environ._data, key, f"os.environ[{name!r}]", strong(environ._data))

    # -- what other parts of `capture` report ---------------------------------------------------------------------

    def uses(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is used: its parameters are read."""
        self.notes.optimizer(optimizer)

    def may_know_state(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the code may have read the state of an optimizer so far, without a guard of it."""
        return self._asks_by_name or id(optimizer) in self._asked

    def reads_whole(self, module: torch.nn.Module) -> None:
        """All of a module's tree is read, without a call of it."""
        self._modules.read_as_called(module)

    def add_input_function(self, function: types.FunctionType) -> None:
        """A function is an input, with its closure."""
        self._closures.internal.add(function.__code__)
        cells = function.__closure__ or ()
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
            if not isinstance(value := contents_of(cell), Tensor):
                self.notes.objects.add_preexisting(value, name)

    # -- afterwards -----------------------------------------------------------------------------------------------

    def sets_gradient(self, leaf: Tensor, before: Tensor | None) -> bool:
        """Whether the code, rather than an eager thread, set the `.grad` of a leaf."""
        return self._gradients.is_set(leaf, before)

    def discards_gradient(self, leaf: Tensor, before: Tensor | None) -> bool:
        """Whether the code does the same with and without the gradient that a leaf had before: it discards it."""
        return self._discarded.contains(leaf, before)

    def uses_gradients(self) -> bool:
        """Whether the code may read or clear a leaf's `.grad`."""
        return self._gradients.are_used()

    def restore_gradients(self) -> None:
        """Restore the `.grad` of each leaf."""
        self._gradients.restore()


# -- which handler a function has ---------------------------------------------------------------------------------


def _ignore(recorder: Recorder, frame: types.FrameType) -> None:
    """The function is not followed."""


def _refuse_loader(recorder: Recorder, frame: types.FrameType) -> None:
    raise CaptureError(
        "captured code loops over a DataLoader, which would happen only once, when it is traced",
        "Loop outside the captured code and pass it each batch.",
        *user_line(frame),
    )


_Handler: TypeAlias = Callable[[Recorder, types.FrameType], None]


_FUNCTIONS: dict[types.CodeType, _Handler] = {
    **dict.fromkeys(READ_ALL, Recorder.enter_whole_module),
    **dict.fromkeys(OPTIMIZER, Recorder.enter_optimizer),
    **dict.fromkeys(READ_STATE, Recorder.enter_state),
    torch.nn.Module.__getattr__.__code__: Recorder.enter_getattr,
    torch.nn.Module._call_impl.__code__: Recorder.enter_module,
    torch.nn.Module.__setattr__.__code__: Recorder.enter_setattr,
    torch.nn.Module.__init__.__code__: Recorder.enter_init,
    torch.nn.Module.register_parameter.__code__: Recorder.enter_register,
    torch.utils.hooks.RemovableHandle.__init__.__code__: Recorder.enter_hook,
    torch.nn.Module.add_module.__code__: Recorder.enter_register,
    torch.nn.modules.lazy.LazyModuleMixin._infer_parameters.__code__: Recorder.enter_lazy,
    torch.nn.Module.train.__code__: Recorder.enter_train,
    torch.utils.data.DataLoader.__iter__.__code__: _refuse_loader,
    os._Environ.__getitem__.__code__: Recorder.enter_environ,
    copy._reconstruct.__code__: Recorder.enter_copy,  # type: ignore[attr-defined]  # private
    FIND_AND_LOAD: lambda recorder, frame: recorder._interludes.begin_import(frame),
}
_BY_OWNER: dict[Owner, _Handler] = {
    Owner.USER: Recorder.enter_user,
    Owner.LIBRARY: Recorder.enter_library,
    Owner.COLLECTOR: lambda recorder, frame: recorder._interludes.begin_callback(frame),
    Owner.OTHER: _ignore,
}
_HANDLERS: dict[types.CodeType, _Handler] = {}  # of all code that was entered so far
# Those of the garbage collector when the last trace began.
_callbacks: frozenset[types.CodeType] = frozenset()


def _forget_callbacks() -> None:
    """Find the handlers again of functions that have become callbacks of the garbage collector, or no longer are."""
    global _callbacks
    before, _callbacks = _callbacks, codes_of_callbacks()
    for code in before ^ _callbacks:
        _HANDLERS.pop(code, None)


def _handler(frame: types.FrameType) -> _Handler:
    return _FUNCTIONS.get(frame.f_code) or _BY_OWNER[owner_of(frame)]
