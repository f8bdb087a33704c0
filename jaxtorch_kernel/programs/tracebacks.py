"""Short tracebacks, like torch's own: the frames of the user and of the libraries that they call, without jaxtorch's.

An operator on the CPU runs in C++ and has no frames. Here it runs in Python, some twenty frames deep, through torch
again (Meta kernels) and through JAX. The *displayed* traceback omits these frames. The error itself keeps them:
`jaxtorch.config(tracebacks="full")` shows them, also for an earlier error (`%tb`), and a debugger can stop in them.

Nothing happens where errors are raised, so calls have no overhead. The code that displays an error uses `shortened`:
the extension in a notebook (`jaxtorch.magics.tracebacks`), `sys.excepthook` in a script (`device/uncaught.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import NamedTuple

from ..base.options import config
from .site import is_engine_file, is_user_file, package_of

# Functions that only pass a call on: what is called has a frame of its own. None: all functions of the file.
_PASSING_ON: dict[str, tuple[str, ...] | None] = {
    os.path.join(*path.split("/")): names
    for path, names in {
        "jaxtorch/operators/methods.py": ("__repr__",),  # calls torch's
        "torch/nn/modules/module.py": ("_wrapped_call_impl", "_call_impl", "inner"),
        "torch/autograd/graph.py": ("_engine_run_backward",),
        "torch/overrides.py": ("handle_torch_function",),
        "torch/utils/_contextlib.py": ("decorate_context",),
        "torch/utils/_device.py": ("__torch_function__",),
        "torch/_tensor_str.py": None,
    }.items()
}
# The user's own line names what it calls of JAX. JAX hides these frames too, but IPython would count them.
_JAX = ("jax", "jaxlib")
# JAX adds a note, in a script, to each error that passes through it: it refers to frames that are not shown here.
_JAX_NOTE = "JAX has removed its internal frames"
_PRINTING = os.sep + os.path.join("torch", "_tensor_str.py")
# jaxtorch calls these packages: their frames are hidden with it, unless a user calls them directly.
_BELOW = ("torch", "jax", "jaxlib", "numpy")
# torch's compiler reads a compiled function some fifty frames deep; none of these frames is the user's code.
_COMPILER = os.sep + os.path.join("torch", "_dynamo", "")
_FOR_USERS = tuple(
    os.sep + os.path.join("torch", name, "") for name in ("nn", "optim", "distributions")
)


class Links(NamedTuple):
    """What an exception shows besides its message, to be put back."""

    traceback: TracebackType | None
    context: BaseException | None
    cause: BaseException | None
    suppressed: bool
    notes: list[str] | None


def is_ours(error: BaseException | None, packages: tuple[str, ...] = ()) -> bool:
    """Whether an error, or one in its chain, passed through jaxtorch or one of these packages."""
    return any(
        is_engine_file(frame.f_code.co_filename)
        or (packages and package_of(frame.f_code.co_filename) in packages)
        for each in _chain(error)
        for frame in _frames(each.__traceback__)
    )


def release_guards(error: BaseException | None) -> None:
    """Enable `torch.func` again after an error while torch printed a tensor.

    torch disables it while it prints, until a local variable of its function dies. The error's frames would keep that
    variable as long as the error itself, which a notebook keeps until the next one.
    """
    for each in _chain(error):
        for frame in _frames(each.__traceback__):
            if frame.f_code.co_filename.endswith(_PRINTING) and frame.f_code.co_name == "_str":
                with suppress(RuntimeError):  # it still runs, in a debugger
                    frame.clear()


@contextmanager
def shortened(error: BaseException | None) -> Iterator[None]:
    """A scope in which an error and the errors in its chain have only the frames that concern the user.

    Errors that jaxtorch caught itself are removed from the chain, so that "During handling of the above exception"
    never refers to one. With `config(tracebacks="full")` nothing changes.
    """
    chain = [] if config.tracebacks == "full" else _chain(error)
    before = [_links(each) for each in chain]
    try:
        for each, links in zip(chain, before, strict=True):
            _shorten(each, links)
        yield
    finally:
        for each, links in zip(chain, before, strict=True):
            _link(each, links)


def _shorten(error: BaseException, links: Links) -> None:
    hidden = _hidden(links.traceback)
    context, cause, suppressed = links.context, links.cause, links.suppressed
    if cause is not None and _was_internal(cause, hidden) and not _has_user(cause):
        cause, suppressed = None, False
    while context is not None and _was_internal(context, hidden):
        # `raise ... from None` in jaxtorch means its own error, and not one that the user is handling.
        context, suppressed = context.__context__, suppressed and cause is not None
    notes = links.notes and [note for note in links.notes if _JAX_NOTE not in str(note)]
    _link(error, Links(shown_part(links.traceback), context, cause, suppressed, notes))


def shown_part(traceback: TracebackType | None) -> TracebackType | None:
    """A copy of a traceback without the hidden frames; all of it if that leaves only frames of Python and IPython."""
    hidden = _hidden(traceback)
    entries = list(_entries(traceback))
    kept = [e for e in entries if e.tb_frame not in hidden]
    if all(_only_calls(e.tb_frame.f_code.co_filename) for e in kept):
        return traceback
    result: TracebackType | None = None
    for e in reversed(kept):
        result = TracebackType(result, e.tb_frame, e.tb_lasti, e.tb_lineno)
    return result


def _only_calls(file: str) -> bool:
    """Whether a frame's file does not tell who the caller is: Python and the shell also run our hooks."""
    return package_of(file) in (None, "IPython", "ipykernel") and not is_user_file(file)


def _hidden(traceback: TracebackType | None) -> set[FrameType]:
    """The hidden frames: jaxtorch's, the compiler's and those of `_BELOW` that they call, JAX's, and `_PASSING_ON`."""
    hidden = set()
    inside = False  # whether the frame is jaxtorch's or the compiler's, or called by it
    for frame in _frames(traceback):
        file = frame.f_code.co_filename
        if _is_internal(file):
            inside = inside or _COMPILER in file or not passes_on(file, frame.f_code.co_name)
        elif inside:
            inside = not _is_for_users(frame)
        if inside or package_of(file) in _JAX or passes_on(file, frame.f_code.co_name):
            hidden.add(frame)
    return hidden


def _is_for_users(frame: FrameType) -> bool:
    """Whether a frame below one of jaxtorch's is code of the user, or of a library that users call."""
    file = frame.f_code.co_filename
    if is_user_file(file):
        # The functions that `capture/quick.py` generates belong to no module.
        return "__name__" in frame.f_globals and not file.startswith("<eval_with_key")
    package = package_of(file)
    return (package is not None and package not in _BELOW) or any(f in file for f in _FOR_USERS)


def passes_on(file: str, function: str) -> bool:
    """Whether a function only passes a call on to another that has a frame of its own."""
    return _COMPILER in file or any(
        file.endswith(os.sep + end) and (names is None or function in names)
        for end, names in _PASSING_ON.items()
    )


def _was_internal(error: BaseException, hidden: set[FrameType]) -> bool:
    """Whether an error was caught in one of these frames or in jaxtorch: its traceback begins where it was caught."""
    if error.__traceback__ is None:
        return False
    frame = error.__traceback__.tb_frame
    return frame in hidden or _is_internal(frame.f_code.co_filename)


def _is_internal(file: str) -> bool:
    return is_engine_file(file) or _COMPILER in file


def _has_user(error: BaseException) -> bool:
    return any(is_user_file(f.f_code.co_filename) for f in _frames(error.__traceback__))


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _frames(traceback: TracebackType | None) -> Iterator[FrameType]:
    return (entry.tb_frame for entry in _entries(traceback))


def _chain(error: BaseException | None) -> list[BaseException]:
    """An error and all errors in its chain."""
    chain: list[BaseException] = []
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and not any(each is other for other in chain):
            chain.append(each)
            waiting += [each.__context__, each.__cause__]
    return chain


def _links(error: BaseException) -> Links:
    notes = getattr(error, "__notes__", None)
    return Links(
        error.__traceback__,
        error.__context__,
        error.__cause__,
        error.__suppress_context__,
        notes if isinstance(notes, list) else None,
    )


def _link(error: BaseException, links: Links) -> None:
    error.__traceback__, error.__context__ = links.traceback, links.context
    error.__cause__ = links.cause  # sets __suppress_context__
    error.__suppress_context__ = links.suppressed
    if links.notes is not None:
        error.__notes__ = links.notes
