"""Records what traced code reads, besides tensor data, while it runs.

A profile hook of this thread sees each Python function that the code enters. For user code, and for libraries built on
torch (`followed.py`), the bytecode tells what a function reads (`reads.py`): globals, closure variables, attributes of
its arguments. These are looked up immediately, before the function runs (`chains.py`), so that the recorded values are
those that the function is about to read. Each becomes a guard (`steps.py`, `notes.py`). An object that a function uses
in any other way counts as read in full (`values.py`).

A few functions of torch act on user objects in ways that no followed bytecode shows: a module is called, one of its
attributes is set, an optimizer steps. Each of them has a handler here, which receives the frame.

The hook is off while an operator of the device runs (`pausing.py`).
"""

from __future__ import annotations

import inspect
import os
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ...base.torch_private import pytree
from ...dispatch import pausing
from ...programs import tracing
from ...programs.site import is_user_file
from ..errors import CaptureError, MakesParameters
from ..modes import Modes
from ..numbers import Number
from . import borders, followed, outside
from .chains import Chains
from .closures import Closures
from .fetch import contents_of, ref, strong
from .gradients import Gradients
from .modules import Modules
from .notes import NOTHING, Notes
from .slots import Slot
from .values import Values

Tensor = torch.Tensor

_FUNCTIONAL = torch.nn.functional.__file__  # whose functions stand for those in C
_NEW_PARAMETER = torch.nn.Parameter.__new__.__code__
_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


class Draw(NamedTuple):
    """A call that draws random numbers, on the device or on the CPU.

    Attributes:
        name: of the function.
        file, line: of the user's code.
        by_user: whether that code made the call itself.
    """

    name: str
    file: str
    line: int
    by_user: bool


class Recorder:
    """Notes what code reads; `finish` makes the guards.

    Args:
        function: the function to trace. A cell's has an `own`: what it receives, or sets itself before reading it.

    Attributes:
        notes: the notes of the trace.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.notes = notes = Notes(getattr(function, "own", NOTHING))
        self._closures = Closures()
        self._values = Values(notes, self._closures)
        self._modules = Modules(self._values)
        self._chains = Chains(self._values, self._closures)
        self._gradients = Gradients(notes)
        self.draws: list[Draw] = []
        self.fresh: set[int] = (
            set()
        )  # results that the code made and that are no tensors, by identity
        # What is asked of a trace when it is over; `Notes` says what each is.
        self.effects, self.checks, self.warned = notes.effects, notes.checks, notes.warned
        self.arguments, self.tensors = notes.arguments, notes.tensors
        self.modules, self.optimizers = notes.modules, notes.optimizers
        self.gradients = notes.gradients

    def run(self, args: Any, kwargs: Any) -> Any:
        """Call the function, watched."""
        notes = self.notes
        self._gradients.trace = tracing.current()
        code = getattr(self.function, "__code__", None)
        if code is not None and is_user_file(code.co_filename):
            self._values.may_run(self.function)
        else:  # a partial, an object: it may be changed
            self._values.expect("the function", self.function, ref(self.function))
        leaves = pytree.tree_leaves((args, kwargs))
        self._chains.has_numbers = any(type(leaf) is Number for leaf in leaves)
        for place, leaf in enumerate(leaves):
            if type(leaf) is Number:
                continue
            if not isinstance(leaf, Tensor):
                notes.meet(leaf, "")
                self._values.expect("an argument", leaf, ref(leaf))
            else:  # an input: what it is at each run is asked of the call
                notes.arguments[id(leaf)] = place
                notes.effects.watch("", leaf)
                self._values.attributes_later("an argument", leaf)
        notes.meet(getattr(self.function, "__self__", None), "")
        modes = Modes()
        given = pytree.tree_flatten((args, kwargs))
        with self.watching():
            result = self.function(*args, **kwargs)
        borders.check_arguments(given, pytree.tree_flatten((args, kwargs)))
        for what in modes.restore():
            raise CaptureError(
                f"the captured code changes {what}", "Change it outside the captured code."
            )
        self.effects.compare(notes.mentions)
        self._values.look_into_waiting()
        self.fresh = borders.fresh_results(pytree.tree_leaves(result), notes)
        notes.let_go()
        self._gradients.follow_others()
        return result

    # -- the hook -------------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record what the code inside reads."""
        stack = _open.recorders
        stack.append(self)
        try:
            with pausing.profiling(self._event):
                yield
        finally:
            stack.remove(self)

    def _event(self, frame: types.FrameType, event: str, arg: Any) -> None:
        if event == "call":
            code = frame.f_code
            handler = _HANDLERS.get(code)
            if handler is None:
                handler = _HANDLERS[code] = _handler(frame)
            if handler is not _pass:
                handler(self, frame)
        elif event == "c_call":
            if getattr(arg, "__name__", "") in outside.DRAWS:
                self._draws(arg, frame)
            what = outside.called(arg, frame)
            if what is not None:
                self._warn(what, frame)
        elif event == "return" and frame.f_code is _NEW_PARAMETER and arg is not None:
            self.notes.parameters.append(weakref.ref(arg))

    def _draws(self, function: Any, frame: types.FrameType | None) -> None:
        while frame is not None and frame.f_code.co_filename == _FUNCTIONAL:
            frame = frame.f_back
        by_user = frame is not None and is_user_file(frame.f_code.co_filename)
        while frame is not None and not is_user_file(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            place = frame.f_code.co_filename, frame.f_lineno
            self.draws.append(Draw(f"torch.{function.__name__}", *place, by_user))

    def _warn(self, what: str, frame: types.FrameType | None) -> None:
        while frame is not None and not is_user_file(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            self.notes.warn(what, frame.f_code.co_filename, frame.f_lineno)

    # -- frames ---------------------------------------------------------------------------------------------------

    def enter_users(self, frame: types.FrameType) -> None:
        """Called when a user function is entered."""
        self._chains.enter(frame, True)

    def enter_library(self, frame: types.FrameType) -> None:
        """Called when a library function, whose own code does not change, is entered."""
        if not _open.users_only:
            self._chains.enter(frame, False)

    def enter_getattr(self, frame: types.FrameType) -> None:
        """`Module.__getattr__`: a parameter, buffer or submodule is read by a name."""
        variables = frame.f_locals
        module, name = variables["self"], variables["name"]
        if not self.notes.is_made(module):
            self._values.of_module(module, name, f"{self.notes.module_path(module)}.{name}")

    def enter_module(self, frame: types.FrameType) -> None:
        """A module is called."""
        module = frame.f_locals["self"]
        if not self.notes.is_made(module):
            self._modules.called(module)

    def enter_setattr(self, frame: types.FrameType) -> None:
        """`Module.__setattr__`, by an assignment or by `setattr`."""
        variables = frame.f_locals
        module, name = variables["self"], variables["name"]
        if not self.notes.is_made(module):
            self._keeps(frame, module, name, variables["value"])
            if id(module) in self.modules or self.notes.is_met(module):
                self._stores(module, name)

    def enter_register(self, frame: types.FrameType) -> None:
        """`Module.register_parameter`, `Module.add_module`: also by a list of modules to which the code appends."""
        module, name, value = list(frame.f_locals.values())[:3]
        if not self.notes.is_made(module):
            self._keeps(frame, module, name, value)

    def enter_init(self, frame: types.FrameType) -> None:
        """`Module.__init__`: the code makes a module."""
        self.notes.make(frame.f_locals["self"])

    def enter_lazy(self, frame: types.FrameType) -> None:
        """A lazy module is called for the first time."""
        raise MakesParameters(self.notes.module_path(frame.f_locals["self"]))

    def _keeps(
        self, frame: types.FrameType, module: torch.nn.Module, name: str, value: Any
    ) -> None:
        if self.notes.holds_new_parameters(value):
            while frame.f_back is not None and not is_user_file(frame.f_code.co_filename):
                frame = frame.f_back
            path = f"{self.notes.module_path(module)}.{name}"
            raise MakesParameters(path, frame.f_code.co_filename, frame.f_lineno)

    def enter_train(self, frame: types.FrameType) -> None:
        """`module.train()` and `module.eval()`: the code may change the mode."""
        for module in frame.f_locals["self"].modules():
            if not self.notes.is_made(module):
                self._stores(module, "training")

    def _stores(self, module: torch.nn.Module, name: str) -> None:
        path = f"{self.notes.module_path(module)}.{name}"
        self.effects.store(Slot.attribute(module, name, path), None, "")

    def enter_optimizer(self, frame: types.FrameType) -> None:
        """An optimizer is used."""
        self.uses(frame.f_locals["self"])

    def enter_whole_module(self, frame: types.FrameType) -> None:
        """A method that reads all parts of a module."""
        module = frame.f_locals.get("self")
        caller = frame.f_back
        while caller is not None and caller.f_code in _READ_ALL:
            caller = caller.f_back
        ours = caller is not None and caller.f_code.co_filename.startswith(_OWN)
        if isinstance(module, torch.nn.Module) and not ours and not self.notes.is_made(module):
            self._modules.read_whole(module)

    def enter_environ(self, frame: types.FrameType) -> None:
        """`os.environ[...]`."""
        variables = frame.f_locals
        environ, name = variables["self"], variables["key"]
        key = environ.encodekey(name)
        self._values.item(environ._data, key, f"os.environ[{name!r}]", strong(environ._data))

    # -- what no frame tells ----------------------------------------------------------------------------------------

    def uses(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is used: its parameters are read."""
        self.notes.optimizer(optimizer)

    def reads_whole(self, module: torch.nn.Module) -> None:
        """All of a module's tree is read, without a call of it."""
        self._modules.read_unseen(module)

    def is_handed(self, function: types.FunctionType) -> None:
        """A function is an input, with its closure (`handed_over`)."""
        self._closures.inside.add(function.__code__)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            if not isinstance(value := contents_of(cell), Tensor):
                self.notes.meet(value, name)

    # -- afterwards -----------------------------------------------------------------------------------------------

    def set_gradient(self, leaf: Tensor, before: Tensor | None) -> bool:
        """Whether the code, rather than an eager thread, set the `.grad` of a leaf."""
        return self._gradients.is_set(leaf, before)

    def uses_gradients(self) -> bool:
        """Whether the code may read or clear a leaf's `.grad`."""
        return self._gradients.are_used()

    def give_gradients_back(self) -> None:
        """Restore the `.grad` of each leaf."""
        self._gradients.give_back()


# -- the recorders of this thread ---------------------------------------------------------------------------------


class _Open(threading.local):
    def __init__(self) -> None:
        self.recorders: list[Recorder] = []
        self.users_only = 0  # how many calls of `users_only` are open


_open = _Open()


@contextmanager
def users_only() -> Iterator[None]:
    """Follow only user code: libraries below a JAX function keep caches that change at each call."""
    _open.users_only += 1
    try:
        yield
    finally:
        _open.users_only -= 1


def read_whole(module: torch.nn.Module) -> None:
    """Declare that the code being traced in this thread reads all of a module without calling it."""
    for recorder in _open.recorders:
        recorder.reads_whole(module)


def handed_over(function: Any) -> None:
    """Declare a function and its closure to be inputs of the code that is being traced in this thread.

    The variables may have other values at another call and are not dependencies, but the contents of their objects are.
    """
    function = getattr(function, "__func__", function)
    if isinstance(function, types.FunctionType):
        for recorder in _open.recorders:
            recorder.is_handed(function)


# -- what to do when a function begins ----------------------------------------------------------------------------


def _pass(recorder: Recorder, frame: types.FrameType) -> None:
    """The function is not followed."""


def _refuse_loader(recorder: Recorder, frame: types.FrameType) -> None:
    while frame.f_back is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    raise CaptureError(
        "captured code loops over a DataLoader, which would happen only once, when it is traced",
        "Loop outside the captured code and pass it each batch.",
        frame.f_code.co_filename,
        frame.f_lineno,
    )


_Handler = Callable[[Recorder, types.FrameType], None]


def _code(function: Any) -> types.CodeType:
    return inspect.unwrap(function).__code__


# Of a module's own methods: those that read all of its tree.
_READ_ALL = frozenset(
    _code(getattr(torch.nn.Module, name))
    for name in ("_named_members", "named_modules", "named_children", "state_dict", "_apply")
)
_OPTIMIZER = [
    _code(getattr(torch.optim.Optimizer, name)) for name in ("zero_grad", "_optimizer_step_code")
]
_FUNCTIONS: dict[types.CodeType, _Handler] = {
    **dict.fromkeys(_READ_ALL, Recorder.enter_whole_module),
    **dict.fromkeys(_OPTIMIZER, Recorder.enter_optimizer),
    torch.nn.Module.__getattr__.__code__: Recorder.enter_getattr,
    torch.nn.Module._call_impl.__code__: Recorder.enter_module,
    torch.nn.Module.__setattr__.__code__: Recorder.enter_setattr,
    torch.nn.Module.__init__.__code__: Recorder.enter_init,
    torch.nn.Module.register_parameter.__code__: Recorder.enter_register,
    torch.nn.Module.add_module.__code__: Recorder.enter_register,
    torch.nn.modules.lazy.LazyModuleMixin._infer_parameters.__code__: Recorder.enter_lazy,
    torch.nn.Module.train.__code__: Recorder.enter_train,
    os._Environ.__getitem__.__code__: Recorder.enter_environ,
}
_FOLLOWED: dict[str, _Handler] = {
    followed.USERS: Recorder.enter_users,
    followed.LIBRARY: Recorder.enter_library,
    followed.NOT_FOLLOWED: _pass,
}
_HANDLERS: dict[types.CodeType, _Handler] = {}  # of all code that was met


def _handler(frame: types.FrameType) -> _Handler:
    code = frame.f_code
    if code is torch.utils.data.DataLoader.__iter__.__code__:
        return _refuse_loader
    return _FUNCTIONS.get(code) or _FOLLOWED[followed.whose(frame)]
