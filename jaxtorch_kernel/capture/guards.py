"""What traced code read besides tensors, and whether it still is what it was.

Checked before each run of a program, in microseconds: whether modules train or evaluate, whether any module of the
process got another parameter, buffer or submodule since (one counter, fed by torch's own registration hooks), and the
plain values that the function itself names, in its closure and among its globals.
"""

from __future__ import annotations

import dis
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules import module as hooks

from ..dispatch.stats import Reason
from ..storage.buffer import buffer_of

_GUARDED = (int, float, complex, bool, str, bytes, tuple, torch.Tensor, torch.Generator, type(None))

_MODES = "Each of the two has its program: this happens once for each."

_registrations = 0


def _registered(*_: Any) -> None:
    if torch.compiler.is_dynamo_compiling():  # it looks into this hook, and must see nothing
        return
    global _registrations
    _registrations += 1


_watched = False


def _watch_registrations() -> None:
    """Count what is registered on any module from now on. Kept for the process: the hook costs 50 ns a registration."""
    global _watched
    if not _watched:
        _watched = True
        hooks.register_module_parameter_registration_hook(_registered)
        hooks.register_module_buffer_registration_hook(_registered)
        hooks.register_module_module_registration_hook(_registered)


_open: list[Guards] = []  # those that are watching


def note(module: torch.nn.Module) -> None:
    """Let the traced code depend on a module whose parts it reads without a call."""
    for guards in _open:
        guards._seen.update((id(m), m) for m in module.modules())


class Guards:
    """The state of the world when a program was traced."""

    def __init__(self, function: Callable[..., Any]):
        _watch_registrations()
        self.epoch = _registrations
        self.modules: list[tuple[weakref.ref[Any], bool]] = []
        self.values = _named_values(function)
        self.names = _free_names(function)
        self.reachable = _reachable(function)
        self._seen: dict[int, Any] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note the modules that are called while the code is traced."""

        def called(module: Any, _: Any) -> None:
            self._seen[id(module)] = module

        handle = hooks.register_module_forward_pre_hook(called)
        _open.append(self)
        try:
            yield
        finally:
            _open.remove(self)
            handle.remove()
        found = [(weakref.ref(m), m.training) for m in self._seen.values()]
        self._seen.clear()
        # One that the code made and dropped is nothing to depend on.
        self.modules = [(reference, mode) for reference, mode in found if reference() is not None]
        self.parts = _parts(self.modules)
        self.reachable.clear()  # or a program would keep a dropped model alive

    def hold(self, modes: bool = True) -> bool:
        """Whether nothing has changed. `modes`: whether it matters that a module trains or evaluates."""
        for reference, training in self.modules:
            module = reference()
            if module is None or (module.training is not training and modes):
                return False
        if self.epoch != _registrations:
            if _parts(self.modules) != self.parts:
                return False
            self.epoch = _registrations
        return all(get(name) is value for get, name, value in self.values)

    def changes(self) -> list[Reason]:
        """What no longer holds, for a person."""
        found = []
        modules = [(reference(), training) for reference, training in self.modules]
        if any(module is None for module, _ in modules):
            found.append(Reason("a module that it called is gone", "Make the module once."))
        for module, training in modules:
            if module is not None and module.training is not training:
                what = f"{type(module).__name__}.training {training} -> {not training}"
                found.append(Reason(what, _MODES))
                break
        if _parts(self.modules) != self.parts:
            what = "a module got another parameter, buffer or submodule"
            found.append(Reason(what, "Change modules before the first call."))
        for get, name, value in self.values:
            if (now := get(name)) is not value:
                found.append(_renamed(self.names.get(id(name), name), value, now))
        return found

    def tensors(self, leaves: list[Any]) -> list[Any]:
        """The tensors that the code can reach by name: of the arguments, its defaults, its closure and its globals."""
        found: dict[int, Any] = {}
        for value in [*leaves, *self.reachable]:
            if isinstance(value, torch.Tensor):
                own = [value]
            elif isinstance(value, torch.nn.Module):
                own = list(value.parameters())
            elif isinstance(value, torch.optim.Optimizer):
                own = [p for group in value.param_groups for p in group["params"]]
            else:
                continue
            found.update((id(t), t) for t in own)
        return list(found.values())

    def module_buffers(self) -> set[int]:
        """The cells of the modules' registered buffers, by identity."""
        found = set()
        for reference, _ in self.modules:
            module = reference()
            for buffer in module._buffers.values() if module is not None else ():
                if buffer is not None and buffer.device.type == "jax":
                    found.add(id(buffer_of(buffer)))
        return found


def _parts(modules: list[tuple[Any, bool]]) -> list[int]:
    """The identity of every parameter, buffer and submodule."""
    found: list[int] = []
    for reference, _ in modules:
        module = reference()
        if module is not None:
            for table in (module._parameters, module._buffers, module._modules):
                found.extend(map(id, table.values()))
    return found


def _named_values(function: Any) -> list[tuple[Callable[[Any], Any], Any, Any]]:
    """(how to read it, its name, its value) of the plain values and functions that a function names."""
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    found: list[tuple[Callable[[Any], Any], Any, Any]] = []
    own = _assigned(code)
    for name in code.co_names:
        if name in own:
            continue
        value = function.__globals__.get(name)
        if isinstance(value, _GUARDED) or callable(value):
            found.append((function.__globals__.get, name, value))
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        value = _contents(cell)
        if name in own:
            continue
        if isinstance(value, _GUARDED) or callable(value):
            found.append((_contents, cell, value))
    return found


def _free_names(function: Any) -> dict[int, str]:
    """What a function calls the cells of its closure, by their identity."""
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    cells = function.__closure__ or ()
    return {id(cell): name for name, cell in zip(code.co_freevars, cells, strict=True)}


def _renamed(name: str, old: Any, new: Any) -> Reason:
    """Another value under a name that the function reads."""
    if callable(old) and callable(new):
        return Reason(f"`{name}` was defined anew", "Define it once, before the first call.")
    if isinstance(old, torch.Tensor) or isinstance(new, torch.Tensor):
        what = f"`{name}` is another tensor"
        return Reason(what, f"Write into it (`{name}.copy_(...)`), or pass it as an argument.")
    shown = [text if len(text := repr(v)) <= 30 else text[:27] + "..." for v in (old, new)]
    what = f"`{name}`, which it reads, {shown[0]} -> {shown[1]}"
    return Reason(what, f"Pass `{name}` as an argument: a number that changes is an operand then.")


def _assigned(code: types.CodeType) -> set[str]:
    """Names outside the function that it assigns itself (a counter): they are not what it depends on."""
    return {
        i.argval
        for i in dis.get_instructions(code)
        if i.opname in ("STORE_DEREF", "STORE_GLOBAL", "STORE_NAME")
    }


def _reachable(function: Any) -> list[Any]:
    """Everything that a function names, one level into containers and objects."""
    own = getattr(function, "__self__", None)
    function = getattr(function, "__func__", function)
    if hasattr(function, "reached"):  # it knows better, as a cell does
        return list(function.reached())
    code = getattr(function, "__code__", None)
    values = [] if own is None else [own]
    if isinstance(function, torch.nn.Module):
        values.append(function)
    if code is not None:
        table = function.__globals__
        values += [table[name] for name in code.co_names if name in table]
        values += [_contents(cell) for cell in function.__closure__ or ()]
        values += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    found = []
    for value in values:
        found.append(value)
        if isinstance(value, dict):
            found += value.values()
        elif isinstance(value, list | tuple):
            found += value
        elif hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType):
            found += vars(value).values()
    return found


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None
